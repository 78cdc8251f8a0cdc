"""The container that downloads a model, as an init container or in a Job."""

from collections.abc import Sequence
from typing import Any

from pagefleet_api import labels
from pagefleet_api.model_source import ModelSource
from pagefleet_operator.facts.expansion import literal
from pagefleet_operator.render.pod_security import restricted

Part = dict[str, Any]

_ERROR_FILE = "/dev/termination-log"


def fetch_container(
    image: str,
    model: ModelSource,
    *,
    mounts: Sequence[Part],
    folder: str,
    resources: Part,
    flags: Sequence[str] = (),
    name: str = labels.FETCH_CONTAINER,
) -> Part:
    """Credentials reach it through its environment alone, and nothing else of the pod.

    mounts: one of them holds `folder`, one is /tmp. What kept it from the model becomes the container's message.
    """
    revision = [] if model.revision is None else ["--revision", model.revision]
    secret = [] if model.secret_ref is None else [{"secretRef": {"name": model.secret_ref.name}}]
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "pagefleet_fetch"],
        "args": [literal(model.uri), "--into", folder, *revision, "--error-file", _ERROR_FILE, *flags],
        "env": [{"name": "HF_HOME", "value": "/tmp/hf"}],
        **({"envFrom": secret} if secret else {}),
        **({"resources": resources} if resources else {}),
        "securityContext": restricted(),
        "terminationMessagePath": _ERROR_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(mounts),
    }
