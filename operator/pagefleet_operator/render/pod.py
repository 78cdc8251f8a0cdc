"""The pod template: one engine container that the restricted Pod Security Standard admits.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

from typing import Any

from pagefleet_api import labels, quantity
from pagefleet_api.launch import Launch
from pagefleet_api.service import InferenceService, Spec
from pagefleet_operator.render import gpus
from pagefleet_operator.render.drain import leaving
from pagefleet_operator.render.model import ModelPlace, model_place
from pagefleet_operator.render.model import warnings as model_warnings
from pagefleet_operator.render.overlay import merged
from pagefleet_operator.render.pod_security import loosened
from pagefleet_operator.render.server_defaults import with_server_defaults

Part = dict[str, Any]

_USER_ID = 65532
_START_LIMIT_S = 1800
_TMP = "/tmp"
_TEMPLATE_FOLDER = "/etc/pagefleet/chat-template"
_TEMPLATE_FILE = "template.jinja"


_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def template(service: InferenceService, image: str, fetch_image: str) -> Part:
    """Template of every pod of a service, with what the user laid over it."""
    own, overlay = _own_template(service, image, fetch_image), service.spec.pod_template
    if overlay is None:
        return own
    whole: Part = with_server_defaults(merged(own, overlay))
    if len(whole["spec"]["containers"]) > 1:
        notes = {_DEFAULT_CONTAINER: labels.CONTAINER, **(whole["metadata"].get("annotations") or {})}
        whole["metadata"]["annotations"] = notes
    return whole


def warnings(service: InferenceService) -> tuple[str, ...]:
    """What a user should know of the pods that they asked for."""
    return (*model_warnings(service.spec.model), *_security_warnings(service))


def _security_warnings(service: InferenceService) -> tuple[str, ...]:
    if service.spec.pod_template is None:
        return ()
    found = loosened(template(service, image="", fetch_image=""))
    words = f"spec.podTemplate is outside the restricted Pod Security Standard: {', '.join(found)}"
    return (words,) if found else ()


def _own_template(service: InferenceService, image: str, fetch_image: str) -> Part:
    """The operator's.

    The serving label is here and not in the Deployment's selector, so flipping it on one pod takes that pod out
    of the Service while its ReplicaSet keeps it. Nothing is requested of a node but what the user asks for:
    the weights' size is not known here, and a guess would be wrong in one direction or the other.
    """
    spec, place = service.spec, model_place(service.spec, fetch_image)
    return {
        "metadata": {"labels": {**labels.common(service.name), labels.SERVING: labels.SERVING_TRUE}},
        "spec": {
            "serviceAccountName": service.child_name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": leaving(spec.drain, serves_through_lag=True).grace_s,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER_ID,
                "runAsGroup": _USER_ID,
                "fsGroup": _USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": labels.selector(service.name)},
                }
            ],
            **({"initContainers": list(place.init_containers)} if place.init_containers else {}),
            "containers": [_container(service, image, place)],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *gpus.volumes(spec), *_template_volumes(spec), *place.volumes],
        },
    }


def launch(service: InferenceService, place: ModelPlace) -> Launch:
    """How the engine in each pod is started."""
    spec = service.spec
    size = spec.engine.kv_cache.size
    return Launch(
        model=place.uri,
        served_model_name=service.served_name,
        device=spec.engine.device.value,
        dtype=spec.engine.dtype,
        port=labels.ENGINE_PORT,
        admin_port=labels.ADMIN_PORT,
        max_model_len=spec.engine.max_model_len,
        max_num_seqs=spec.engine.max_num_seqs,
        max_num_batched_tokens=spec.engine.max_num_batched_tokens,
        max_queued_requests=spec.engine.max_queued_requests,
        tensor_parallel_size=spec.engine.parallelism.tensor,
        kv_cache_bytes=None if size is None else quantity.to_bytes(size),
        drain_timeout_s=spec.drain.timeout_seconds,
        chat_template=f"{_TEMPLATE_FOLDER}/{_TEMPLATE_FILE}" if spec.engine.chat_template else None,
        # An empty Secret must not open the service to everybody.
        require_api_key=spec.engine.api_keys_secret_ref is not None,
    )


def _container(service: InferenceService, image: str, place: ModelPlace) -> Part:
    spec = service.spec
    return {
        "name": labels.CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": launch(service, place).argv(),
        "ports": [
            {"name": labels.PORT_NAME, "containerPort": labels.ENGINE_PORT, "protocol": "TCP"},
            {"name": labels.ADMIN_PORT_NAME, "containerPort": labels.ADMIN_PORT, "protocol": "TCP"},
        ],
        **_environment(spec, place),
        **_api_keys(spec),
        **_resources(spec),
        "startupProbe": _probe("/readyz", period_s=1, timeout_s=5, failures=_START_LIMIT_S),
        "readinessProbe": _probe("/readyz", period_s=2, timeout_s=4, failures=2),
        "livenessProbe": _probe("/healthz", period_s=5, timeout_s=5, failures=6),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": _TMP},
            *gpus.mounts(spec),
            *_template_mounts(spec),
            *place.mounts,
        ],
    }


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> Part:
    return {
        "httpGet": {"path": path, "port": labels.ADMIN_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _environment(spec: Spec, place: ModelPlace) -> Part:
    variables = [*gpus.environment(spec), *place.env]
    return {"env": variables} if variables else {}


def _api_keys(spec: Spec) -> Part:
    """Keys reach the engine through its environment alone, never as an argument or an annotation."""
    secret = spec.engine.api_keys_secret_ref
    if secret is None:
        return {}
    return {"envFrom": [{"prefix": labels.API_KEY_ENV_PREFIX, "secretRef": {"name": secret.name}}]}


def _resources(spec: Spec) -> Part:
    parts = {"requests": dict(spec.resources.requests), "limits": {**spec.resources.limits, **gpus.limits(spec)}}
    given = {name: values for name, values in parts.items() if values}
    return {"resources": given} if given else {}


def _template_volumes(spec: Spec) -> list[Part]:
    if spec.engine.chat_template is None:
        return []
    source = spec.engine.chat_template.config_map_key_ref
    items = [{"key": source.key, "path": _TEMPLATE_FILE}]
    return [{"name": "chat-template", "configMap": {"name": source.name, "items": items}}]


def _template_mounts(spec: Spec) -> list[Part]:
    if spec.engine.chat_template is None:
        return []
    return [{"name": "chat-template", "mountPath": _TEMPLATE_FOLDER, "readOnly": True}]
