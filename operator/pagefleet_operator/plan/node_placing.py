"""Which nodes a service's pods may go to, as far as its spec says: where its model is to be. Pure.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_api import quantity
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.observed import Body

_HINDERS = frozenset({"NoSchedule", "NoExecute"})
_STATE_OF_NODE = "node.kubernetes.io/"
"""Taints that come and go with a node's state; a DaemonSet's pods tolerate them."""
_Toleration = Mapping[str, Any]


def may_hold(node: Body, service: InferenceService) -> bool:
    """Whether a node could take the service's pods; how full it is does not matter."""
    pod = (service.spec.pod_template or {}).get("spec") or {}
    return (
        _selected(node, _asked(pod.get("nodeSelector") or {}))
        and _affine(node, pod.get("affinity") or {})
        and _tolerated(node, _tolerations(service))
        and _has_gpus(node, service)
    )


def placing(service: InferenceService) -> tuple[object, ...]:
    """What `may_hold` reads of a service: equal values, equal nodes."""
    pod = (service.spec.pod_template or {}).get("spec") or {}
    gpus = (service.spec.resources.gpu.resource_name, service.spec.gpu_count)
    return pod.get("nodeSelector"), (pod.get("affinity") or {}).get("nodeAffinity"), pod.get("tolerations"), gpus


def tolerations(services: Sequence[InferenceService]) -> list[Any]:
    """Every toleration of the services' pods, once; with GPUs also the one that admission may add to them."""
    found: list[Any] = []
    for service in services:
        found += [each for each in _tolerations(service) if each not in found]
    return found


def _tolerations(service: InferenceService) -> list[_Toleration]:
    """The admission plugin ExtendedResourceToleration adds its own to pods when they are made, and to no template.

    Source: https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
    """
    pod = (service.spec.pod_template or {}).get("spec") or {}
    gpus = {"key": service.spec.resources.gpu.resource_name, "operator": "Exists", "effect": "NoSchedule"}
    return [*(pod.get("tolerations") or ()), *([gpus] if service.spec.gpu_count else [])]


def _has_gpus(node: Body, service: InferenceService) -> bool:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    has = quantity.parse(str(allocatable.get(service.spec.resources.gpu.resource_name, "0")))
    return has >= service.spec.gpu_count


def _asked(selector: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what a patch takes away, and how: there is no selector below it."""
    return {name: value for name, value in selector.items() if value is not None and not name.startswith("$")}


def _selected(node: Body, selector: Mapping[str, Any]) -> bool:
    return all(_labels(node).get(name) == value for name, value in selector.items())


def _affine(node: Body, affinity: Mapping[str, Any]) -> bool:
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_matches(node, term) for term in required.get("nodeSelectorTerms") or ())


def _matches(node: Body, term: Mapping[str, Any]) -> bool:
    """A term without any requirement matches no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    named = {"metadata.name": node["metadata"]["name"]}
    holds = [_holds(_labels(node), each) for each in expressions] + [_holds(named, each) for each in fields]
    return bool(holds) and all(holds)


def _holds(values: Mapping[str, str], requirement: Mapping[str, Any]) -> bool:
    value, wanted = values.get(requirement["key"]), list(requirement.get("values") or ())
    match requirement["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _is_number(value) and int(value or 0) > int(wanted[0])
        case _:
            return _is_number(value) and int(value or 0) < int(wanted[0])


def _is_number(value: str | None) -> bool:
    return value is not None and value.isdecimal()


def _tolerated(node: Body, given: Sequence[_Toleration]) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    hinder = [t for t in taints if t.get("effect") in _HINDERS and not t["key"].startswith(_STATE_OF_NODE)]
    return all(any(_tolerates(each, taint) for each in given) for taint in hinder)


def _tolerates(toleration: _Toleration, taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator") == "Exists":
        return key in {"", taint["key"]}
    return bool(key == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""))


def _labels(node: Body) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}
