"""Which folders of which claims a pod of ours reads, as its spec has it. Pure."""

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.facts.expansion import plain

MODELS = "/models"
"""Where models are mounted, read-only for the engine."""
FILE = "file://"
"""Before that path, where our own engine is told its model."""

Claims = Mapping[str, frozenset[str]]
"""Of each claim that a pod mounts the folders at its top that the engine reads."""


def claims_of(spec: Mapping[str, Any]) -> Claims:
    """Of a pod's spec, whatever its service says by now."""
    volumes = (volume.get("persistentVolumeClaim") or {} for volume in spec.get("volumes") or ())
    folders = frozenset(_folders(spec))
    return {volume["claimName"]: folders for volume in volumes if "claimName" in volume}


def _folders(spec: Mapping[str, Any]) -> set[str]:
    words = [plain(str(word)) for container in spec.get("containers") or () for word in _words(container)]
    paths = [word.removeprefix(FILE) for word in words if word.removeprefix(FILE).startswith(f"{MODELS}/")]
    return {path.removeprefix(f"{MODELS}/").partition("/")[0] for path in paths}


def _words(container: Mapping[str, Any]) -> list[Any]:
    """Where an engine is told its model: arguments, or the environment of one that is not known."""
    return [*(container.get("args") or ()), *(each.get("value") for each in container.get("env") or ())]
