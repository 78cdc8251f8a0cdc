"""Which folders of which claims a pod of ours reads, as its spec has it. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from pagefleet_operator.facts.expansion import plain

MODELS = "/models"
"""Where models are mounted, read-only for the engine."""
ADAPTERS = "/adapters"
"""Where adapters are mounted: in folders of it, so that none is inside another one's mount."""
FILE = "file://"
"""Before that path, where our own engine is told its model."""

_PATH = re.compile(rf"(?:^|[=,\"]|^{FILE})(?:{MODELS}|{ADAPTERS}/[^/,]+)/([^/,\"]+)")
"""A path in an argument: alone, as a URI, in a list of `NAME=PATH`, or in JSON."""

Claims = Mapping[str, frozenset[str]]
"""Of each claim that a pod mounts the folders at its top that the engine reads."""


def claims_of(spec: Mapping[str, Any]) -> Claims:
    """Of a pod's spec, whatever its service says by now."""
    volumes = (volume.get("persistentVolumeClaim") or {} for volume in spec.get("volumes") or ())
    folders = frozenset(_folders(spec))
    return {volume["claimName"]: folders for volume in volumes if "claimName" in volume}


def _folders(spec: Mapping[str, Any]) -> set[str]:
    words = [plain(str(word)) for container in spec.get("containers") or () for word in _words(container)]
    return {folder for word in words for folder in _PATH.findall(word)}


def _words(container: Mapping[str, Any]) -> list[Any]:
    """Where an engine is told its model: arguments, or the environment of one that is not known."""
    return [*(container.get("args") or ()), *(each.get("value") for each in container.get("env") or ())]
