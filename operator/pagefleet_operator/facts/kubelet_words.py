"""What a kubelet means by what it says of a container or a volume. Pure."""

import re

_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*": \w+: ')
_RPC = re.compile(r"^rpc error: code = \w+ desc = ")
_KEY_MISSING = re.compile(
    r'(?i)(secret|configmap) "[^"]+" not found|couldn\'t find key|references non-existent (secret|config) key'
)
_UNSURE = re.compile(r"failed to sync (secret|configmap) cache: timed out")
"""Source: `GetObject` of the watch-based manager in kubernetes/pkg/kubelet/util/manager; it waits a second."""


def names_missing_key(words: str) -> bool:
    """Whether the kubelet speaks of a Secret or ConfigMap, or of a key in one, that does not exist."""
    return _KEY_MISSING.search(words) is not None


def does_not_know_yet(words: str) -> bool:
    """Whether the kubelet says that it has not read a Secret or ConfigMap so far: it tries again by itself, and only
    then knows whether there is one. Nodes with much to do say so for a moment."""
    return _UNSURE.search(words) is not None


def of_registry(words: str) -> str:
    """A registry's own words: between two tries the kubelet's wait stands before them, the runtime's call always."""
    return _RPC.sub("", _BACK_OFF.sub("", words))
