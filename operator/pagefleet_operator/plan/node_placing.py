"""Which nodes a service's pods may go to, as far as its spec says: where its model is to be. Pure.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pagefleet_api import quantity
from pagefleet_api.pod_patch import new_fields
from pagefleet_api.pod_places import REQUIRED
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.observed import Body

MOST_TOLERATIONS = 200
"""Of all services with one model, beyond which all taints are tolerated: each service adds its own to one object."""

_HINDERS = frozenset({"NoSchedule", "NoExecute"})
_STATE_OF_NODE = "node.kubernetes.io/"
"""Taints that come and go with a node's state; a DaemonSet's pods tolerate them."""


class Toleration(NamedTuple):
    """Which taints are tolerated, as the API server reads it; an empty text is every key or effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "Toleration":
        """A toleration of a pod that has been checked."""
        key, value, effect = (item.get(name) or "" for name in ("key", "value", "effect"))
        return cls(key, item.get("operator") or "Equal", value, effect)

    def tolerates(self, taint: Mapping[str, Any]) -> bool:
        """Whether a node's taint keeps no pod away that has this."""
        if self.effect not in {"", taint["effect"]}:
            return False
        if self.operator == "Exists":
            return self.key in {"", taint["key"]}
        return bool(self.key == taint["key"] and self.value == (taint.get("value") or ""))

    def item(self) -> dict[str, str]:
        """As an item of a pod's list."""
        return {name: text for name, text in self._asdict().items() if text}


class Placing(NamedTuple):
    """What a service says of nodes: of equal values the same nodes hold. `terms` None: any node's labels will do."""

    selector: Mapping[str, str]
    terms: Sequence[Mapping[str, Any]] | None
    tolerations: Sequence[Toleration]
    resource: str
    gpus: int


def may_hold(node: Body, service: InferenceService) -> bool:
    """Whether a node could take the service's pods; how full it is does not matter."""
    return _holds_pods(node, placing(service))


def holders(nodes: Sequence[Body], services: Iterable[InferenceService]) -> list[Body]:
    """Nodes that could take pods of any of the services."""
    asked = (placing(service) for service in services)
    different = {json.dumps(each, sort_keys=True): each for each in asked}.values()
    return [node for node in nodes if any(_holds_pods(node, each) for each in different)]


def placing(service: InferenceService) -> Placing:
    """What a service asks of nodes; what its patch takes away, and how, is left out."""
    pod = (service.spec.pod_template or {}).get("spec") or {}
    affinity = _only(pod.get("affinity"), "nodeAffinity", REQUIRED)
    asked = new_fields({"affinity": affinity, **{name: pod.get(name) for name in ("nodeSelector", "tolerations")}})
    required = (asked.get("affinity", {}).get("nodeAffinity") or {}).get(REQUIRED)
    return Placing(
        selector=asked.get("nodeSelector", {}),
        terms=None if required is None else required.get("nodeSelectorTerms") or (),
        tolerations=[*map(Toleration.of, asked.get("tolerations", ())), *_of_gpus(service)],
        resource=service.spec.resources.gpu.resource_name,
        gpus=service.spec.gpu_count,
    )


def tolerations(services: Sequence[InferenceService]) -> list[dict[str, str]]:
    """Every toleration of the services' pods, once; with GPUs also the one that admission may add to them.

    Of what a service says, nothing goes into it that could make the object one that the API server refuses, or too
    large. Who tolerates a taint for some seconds alone is served for as long.
    """
    found = sorted({each for service in services for each in placing(service).tolerations})
    return [each.item() for each in found] if len(found) <= MOST_TOLERATIONS else [{"operator": "Exists"}]


def _only(value: Mapping[str, Any] | None, *path: str) -> Mapping[str, Any] | None:
    """Of a patch what lies on the path, with its directives: other parts may be large."""
    if value is None or not path:
        return value
    first, *others = path
    inner = {} if first not in value else {first: _only(value[first], *others)}
    return {**{name: part for name, part in value.items() if name.startswith("$")}, **inner}


def _of_gpus(service: InferenceService) -> list[Toleration]:
    """The admission plugin ExtendedResourceToleration adds its own to pods when they are made, and to no template.

    Source: https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
    """
    resource = service.spec.resources.gpu.resource_name
    return [Toleration(resource, "Exists", effect="NoSchedule")] if service.spec.gpu_count else []


def _holds_pods(node: Body, asked: Placing) -> bool:
    return (
        all(_labels(node).get(name) == value for name, value in asked.selector.items())
        and (asked.terms is None or any(_matches(node, term) for term in asked.terms))
        and _tolerated(node, asked.tolerations)
        and _has_gpus(node, asked)
    )


def _has_gpus(node: Body, asked: Placing) -> bool:
    if not asked.gpus:
        return True
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return quantity.parse(str(allocatable.get(asked.resource, "0"))) >= asked.gpus


def _matches(node: Body, term: Mapping[str, Any]) -> bool:
    """A term without any requirement matches no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    named = {"metadata.name": node["metadata"]["name"]}
    holds = all(_holds(_labels(node), each) for each in expressions) and all(_holds(named, each) for each in fields)
    return bool(expressions or fields) and holds


def _holds(values: Mapping[str, str], requirement: Mapping[str, Any]) -> bool:
    value = values.get(requirement["key"])
    wanted: Sequence[str] = requirement.get("values") or ()
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


def _tolerated(node: Body, given: Sequence[Toleration]) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    hinder = [t for t in taints if t.get("effect") in _HINDERS and not t["key"].startswith(_STATE_OF_NODE)]
    return all(any(each.tolerates(taint) for each in given) for taint in hinder)


def _labels(node: Body) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}
