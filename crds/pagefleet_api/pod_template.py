"""`spec.podTemplate`: an overlay on the pod template, merged as the API server merges a strategic merge patch.

Here is what may be in one; `pagefleet_operator.render.overlay` merges. The API server keeps it as it is given: its
schema would be the whole of a pod's.
"""

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from pagefleet_api import labels
from pagefleet_api.pod_patch import DELETE, DIRECTIVE, REPLACE, RETAIN, Overlay, form_faults
from pagefleet_api.pod_places import place_faults
from pagefleet_api.resource_limits import above_limits
from pagefleet_api.wording import brief, shown

_POD_RESERVED = {
    "terminationGracePeriodSeconds": "spec.drain.timeoutSeconds says how long a pod may take to end",
    "restartPolicy": "a Deployment's pods are always started again",
    "serviceAccount": "serviceAccountName is its name today",
}
_ENGINE_RESERVED = {
    "image": "spec.engine.image says it",
    "command": "the image says it",
    "args": "the fields of spec.engine say them",
    "resources": "spec.resources says them",
    "ports": "the Service and the probes rely on them",
    "lifecycle": "the drain relies on it; spec.drain has its time",
    "envFrom": "it holds the API keys of spec.engine.apiKeysSecretRef; name each variable in env",
}
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_PROBE_TIMES = frozenset(
    {"initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"}
)
_OWN_LABELS = frozenset({labels.MANAGED_BY, labels.NAME, labels.INSTANCE, "pod-template-hash"})
_OWN_PREFIX = f"{labels.GROUP}/"
_NEVER_REPLACED = ("containers", "initContainers", "volumes")
_OWN_CONTAINERS: Mapping[str, tuple[str, ...]] = {
    "initContainers": (labels.CONTAINER, *labels.OWN_INIT_CONTAINERS),
    "containers": labels.OWN_INIT_CONTAINERS,
}
_NEVER_REPLACED_IN_ENGINE = ("env", "volumeMounts")


_SIZE_LIMIT_BYTES = 192 * 1024
"""It is kept in an annotation of the Deployment beside other parts of the spec, and all annotations of an object may
have 256 KiB. Source: TotalAnnotationSizeLimitB in k8s.io/apimachinery, pkg/api/validation/objectmeta.go."""
_LEVELS = 32
_MOST_PARTS = 20_000
"""Fields and items in all: each is looked at in each pass. Of a size, what has the shortest texts takes longest."""


_FAULT_CHARACTERS = 600
"""Of words about one fault: names of fields are the user's too."""


def checked(overlay: dict[str, Any]) -> dict[str, Any]:
    """`overlay` as it is; ValueError with its first fault, which names the field and the way out."""
    fault = next(_faults(overlay), None)
    if fault is not None:
        raise ValueError(brief(fault, _FAULT_CHARACTERS))
    return overlay


PodTemplate = Annotated[
    dict[str, Any],
    AfterValidator(checked),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


def _faults(overlay: Overlay) -> Iterator[str]:
    """The extent first: what comes after it looks at every part."""
    yield from _extent_faults(overlay)
    for name in overlay:
        if name not in {"metadata", "spec"}:
            yield f"{name} cannot be set: a pod template has metadata and spec"
    for name in overlay:
        if not isinstance(overlay[name], Mapping):
            yield f"{name} must be an object"
    yield from form_faults(overlay)
    yield from _metadata(overlay.get("metadata", {}))
    yield from _spec(overlay.get("spec", {}))


def _extent_faults(overlay: Overlay) -> Iterator[str]:
    """Counted before it is written: a file may name one part a thousand times, and that part another one."""
    layer: list[Any] = [overlay]
    left = _MOST_PARTS
    for _ in range(_LEVELS):
        inside = chain.from_iterable(each.values() if isinstance(each, Mapping) else each for each in layer)
        parts = list(islice(inside, left + 1))
        left -= len(parts)
        if left < 0:
            yield f"it has more than {_MOST_PARTS} fields and items in all; move data to a ConfigMap"
            return
        layer = [part for part in parts if isinstance(part, Mapping | list)]
    if layer:
        yield f"it is nested more than {_LEVELS} levels deep, which no pod is; leave the inner ones out"
        return
    text = json.dumps(overlay, separators=(",", ":"), ensure_ascii=False, default=str, skipkeys=True)
    size_bytes = len(text.encode(errors="replace"))
    if size_bytes > _SIZE_LIMIT_BYTES:
        yield f"it has {size_bytes} bytes as JSON, and {_SIZE_LIMIT_BYTES} are the most; move data to a ConfigMap"


def _metadata(metadata: Overlay) -> Iterator[str]:
    for name, value in metadata.items():
        if name not in {"labels", "annotations"}:
            yield f"metadata.{name} cannot be set: labels and annotations can"
        elif not isinstance(value, Mapping):
            yield f"metadata.{name} must be an object"
        else:
            yield from (fault for key, text in value.items() if (fault := _mark(f"metadata.{name}", key, text)))


def _mark(path: str, key: str, text: Any) -> str | None:
    """What is wrong with one label or annotation."""
    if key.startswith("$"):
        return f"{path} cannot take {key}: the operator's own are in it"
    if key.startswith(_OWN_PREFIX) or key in _OWN_LABELS or key == labels.DELETION_COST:
        return f"{path}.{key} is the operator's own; choose another name"
    if key.startswith(labels.LWS_PREFIX):
        return f"{path}.{key} is LWS' own, which would take the pod for one of another service; choose another name"
    if text is not None and not isinstance(text, str):
        return f"{path}.{key} must be a string, but it is {shown(text)}; put it in quotes"
    return None


def _spec(spec: Overlay) -> Iterator[str]:
    yield from _whole(spec, "spec")
    for name, instead in _POD_RESERVED.items():
        if name in spec:
            yield f"spec.{name} cannot be set here: {instead}"
    for name in _NEVER_REPLACED:
        yield from _whole_list(spec, name, f"spec.{name}")
    yield from place_faults(spec)
    yield from _security(spec.get("securityContext"), "spec.securityContext")
    for name in ("initContainers", "containers"):
        for index, item in enumerate(spec.get(name) or ()):
            yield from _container(item, f"spec.{name}[{index}]", _OWN_CONTAINERS[name])
        yield from _twice(spec.get(name) or (), f"spec.{name}")
    for index, item in enumerate(spec.get("containers") or ()):
        if item.get("name") == labels.CONTAINER:
            yield from _engine(item, f"spec.containers[{index}]")


def _container(container: Overlay, path: str, taken: Container[str]) -> Iterator[str]:
    """`taken`: names of containers that the operator itself makes, in some pods or in all: nobody else changes them."""
    if container.get("name") in taken or str(container.get("name")).startswith(labels.FETCH_ADAPTER_PREFIX):
        yield f"{path}.name {container['name']} is the operator's own; choose another name"
    yield from _security(container.get("securityContext"), f"{path}.securityContext")
    resources = container.get("resources")
    if isinstance(resources, Mapping):
        yield from above_limits(resources.get("requests"), resources.get("limits"), f"{path}.resources.")


def _twice(containers: Iterable[Overlay], path: str) -> Iterator[str]:
    """Names that come again: of such containers one alone would be in the pod."""
    seen: set[Any] = set()
    for index, item in enumerate(containers):
        if DIRECTIVE in item:  # one to delete, and another of its name instead, are no two
            continue
        name = item.get("name")
        if name is not None and name in seen:
            yield f"{path}[{index}].name {name} is taken by another container of the list; choose another name"
        seen.add(name)


def _security(context: Any, path: str) -> Iterator[str]:
    """The parts that are read here, to say what is outside the restricted Pod Security Standard."""
    if context is None:
        return
    if not isinstance(context, Mapping):
        yield f"{path} must be an object"
        return
    for name in ("capabilities", "seccompProfile"):
        if not isinstance(context.get(name) or {}, Mapping):
            yield f"{path}.{name} must be an object"
            return
    capabilities = context.get("capabilities") or {}
    for name in ("add", "drop"):
        names = capabilities.get(name) or []
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            yield f"{path}.capabilities.{name} must be a list of names"


def _engine(container: Overlay, path: str) -> Iterator[str]:
    yield from _whole(container, path)
    for name, instead in _ENGINE_RESERVED.items():
        if name in container:
            yield f"{path}.{name} of the container {labels.CONTAINER} cannot be set here: {instead}"
    for name in _NEVER_REPLACED_IN_ENGINE:
        yield from _whole_list(container, name, f"{path}.{name}")
    for name in _PROBES:
        if name in container:
            yield from _probe(container[name], f"{path}.{name}")
    for item in container.get("env") or ():
        if str(item.get("name")).startswith("PAGEFLEET_"):
            yield f"{path}.env: {item['name']} is the operator's own; names that start with PAGEFLEET_ are"


def _probe(probe: Any, path: str) -> Iterator[str]:
    others = sorted(set(probe) - _PROBE_TIMES) if isinstance(probe, Mapping) else ["null"]
    if others:
        yield f"{path} takes {', '.join(sorted(_PROBE_TIMES))} alone, not {', '.join(others)}"


def _whole(value: Overlay, path: str) -> Iterator[str]:
    for name in (DIRECTIVE, RETAIN):
        if name in value:
            yield f"{path} cannot take {name}: the operator's own fields are in it"


def _whole_list(value: Overlay, name: str, path: str) -> Iterator[str]:
    """A list that the operator's own items are in."""
    if name in value and value[name] is None:
        yield f"{path} cannot be null: the operator's own items are in it; delete one by `{DIRECTIVE}: {DELETE}`"
    if any(item.get(DIRECTIVE) == REPLACE for item in value.get(name) or ()):
        yield f"{path} cannot be replaced: the operator's own items are in it; name each item to change"
