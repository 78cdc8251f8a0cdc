"""The init containers that copy a model out of its image, where nodes cannot mount images as volumes.

The image may hold nothing but files, so what copies them comes from an image of ours, through a volume.
"""

from typing import Any

from pagefleet_api import copier, labels
from pagefleet_operator.facts.expansion import literal
from pagefleet_operator.render.pod_security import restricted

Part = dict[str, Any]

_VOLUME = "pagefleet-copier"
_LAYOUT = copier.Layout()


def copy_volumes() -> tuple[Part, ...]:
    """What the containers need beside the model's own volume."""
    return ({"name": _VOLUME, "emptyDir": {}},)


def copy_containers(image: str, reference: str, folder: str, *, volume: str, resources: Part) -> tuple[Part, Part]:
    """One of our `image` that brings the copier, and one of the model's, `reference`, that starts it.

    folder: the path in the model's image, which is the path in the model's `volume` too; all of the image where it is
    empty. What keeps it from being copied is the container's last word, and that it was copied its message.
    """
    bring = {
        "name": labels.COPIER_CONTAINER,
        "image": image,
        "command": ["python3", "-m", "pagefleet_fetch.copier"],
        "args": [copier.HOME],
        "volumeMounts": [{"name": _VOLUME, "mountPath": copier.HOME}],
    }
    start = {
        "name": labels.COPY_CONTAINER,
        "image": reference,
        "command": _LAYOUT.argv(),
        "args": [literal(f"/{folder}"), copier.INTO, copier.TOLD],
        "workingDir": "/",
        "terminationMessagePath": copier.TOLD,
        "env": [{"name": name, "value": value} for name, value in _LAYOUT.environment.items()],
        "volumeMounts": [
            {"name": _VOLUME, "mountPath": copier.HOME, "readOnly": True},
            {"name": _VOLUME, "mountPath": copier.PRELOADED, "subPath": copier.NOTHING, "readOnly": True},
            {"name": volume, "mountPath": copier.INTO},
        ],
    }
    return _hardened(bring, resources), _hardened(start, resources)


def _hardened(container: Part, resources: Part) -> Part:
    return {
        **container,
        "imagePullPolicy": "IfNotPresent",
        **({"resources": resources} if resources else {}),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
