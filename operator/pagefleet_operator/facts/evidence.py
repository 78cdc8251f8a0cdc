"""What the watch cache does not hold and is asked for only while a pod is in trouble, as values: how much of an
extended resource the nodes have left, and what the kubelet said in Events. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pagefleet_api import quantity
from pagefleet_operator.facts.problems import Body, condition_of, parse_time

_NO_MORE_PODS = frozenset({"NoSchedule", "NoExecute"})
_STATE_OF_NODE = "node.kubernetes.io/"
_HINDER = frozenset(
    {"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "FailedSync", "NetworkNotReady"}
)
_FURTHER = frozenset({"SuccessfulAttachVolume", "Pulling", "Pulled", "Created"})
_PROBE = re.compile("failed (liveness|startup) probe")
_NOT_MADE = "FailedCreate"
_MAKING = frozenset({"SuccessfulCreate", _NOT_MADE})
_WHICH_POD = re.compile(r"^(\(combined from similar events\): )?create Pod \S+ in StatefulSet \S+ failed error: ")
"""Source: `recordPodEvent` in kubernetes/pkg/controller/statefulset; the brackets are client-go's."""
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much of one extended resource, GPUs for example, is free on the nodes that take pods.

    Taints that somebody set on purpose are not looked at, as pods may tolerate them: the scheduler says what it
    makes of those.
    """

    resource: str
    free_by_node: Mapping[str, int] = field(default_factory=dict)
    """Of every node that has the resource at all."""
    allocatable: int = 0
    """Free or not, on all of these nodes."""

    @property
    def total_free(self) -> int:
        """Free on all nodes together."""
        return sum(self.free_by_node.values())

    @property
    def most_free(self) -> int:
        """Free on the node that has most left: a pod that asks for more fits nowhere."""
        return max(self.free_by_node.values(), default=0)

    def pods(self, each: int) -> int:
        """How many more pods fit that ask for `each` (at least 1) of the resource."""
        return sum(free // each for free in self.free_by_node.values())

    @classmethod
    def of(cls, resource: str, allocatable: Mapping[str, int], taken: Mapping[str, int]) -> "Room":
        """From what nodes have (`allocatable_on`) and what the pods on each of them have `taken`."""
        return cls(
            resource=resource,
            free_by_node={node: max(has - taken.get(node, 0), 0) for node, has in allocatable.items()},
            allocatable=sum(allocatable.values()),
        )


def allocatable_on(nodes: Iterable[Body], resource: str) -> dict[str, int]:
    """How much of a resource each node that takes pods has for them; nodes without any are left out."""
    return {node["metadata"]["name"]: has for node in nodes if (has := _takes(node, resource)) > 0}


def essentials(node: Body) -> Body:
    """What is read of a node that is remembered; the rest, its list of images above all, is most of it."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = condition_of(status, "Ready")
    return {
        "metadata": _some(node["metadata"], "name", "labels"),
        "spec": _some(spec, "taints", "unschedulable"),
        "status": {**_some(status, "allocatable", "nodeInfo"), "conditions": [] if ready is None else [ready]},
    }


def _some(part: Body, *names: str) -> Body:
    return {name: part[name] for name in names if name in part}


def takes_pods(node: Body) -> bool:
    """Whether a node takes pods now; taints that somebody set on purpose are not looked at."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    away = any(
        taint.get("effect") in _NO_MORE_PODS and str(taint.get("key")).startswith(_STATE_OF_NODE)
        for taint in spec.get("taints") or ()
    )
    ready = (condition_of(status, "Ready") or {}).get("status") == "True"
    return ready and not away and not spec.get("unschedulable")


def taken_by(pods: Iterable[Body], resource: str) -> int:
    """How much of a resource the pods of one node have. Source: the scheduler counts all that have not ended."""
    held = [pod.get("spec") or {} for pod in pods if (pod.get("status") or {}).get("phase") not in _ENDED]
    return sum(extended_requests(spec).get(resource, 0) for spec in held)


class Warned(NamedTuple):
    """A Warning that the kubelet or the attach controller posted about a pod that does not come to run."""

    reason: str
    message: str

    @classmethod
    def latest(cls, events: Iterable[Body]) -> "Warned | None":
        """What was said last of what hinders a pod's containers; None when nothing was, or when they came further."""
        telling = [event for event in events if event.get("reason") in _HINDER | _FURTHER]
        last = max(telling, key=lambda event: (_said_at(event), event["reason"] in _FURTHER), default=None)
        if last is None or last["reason"] in _FURTHER:
            return None
        return cls(last["reason"], str(last.get("message") or ""))


def refused(events: Iterable[Body], since: datetime | None) -> str | None:
    """Why a StatefulSet's pod could not be made, in the API server's words; None when the last one could.

    What was said before `since` is of an earlier set of that name. Of the same second the refusal counts: sets make
    several pods at once, and this is asked only while one is missing.
    """
    made = [event for event in events if event.get("reason") in _MAKING]
    telling = [event for event in made if since is None or (parse_time(_said_at(event)) or since) >= since]
    last = max(telling, key=lambda event: (_said_at(event), event["reason"] == _NOT_MADE), default=None)
    if last is None or last["reason"] != _NOT_MADE:
        return None
    return _WHICH_POD.sub("", str(last.get("message") or ""))


def pulls(events: Iterable[Body]) -> int:
    """How often the kubelet began to pull, by its Events; it posts fewer after the first few tries."""
    return sum(_times(event) for event in events if event.get("reason") == "Pulling")


def probe_kill(events: Iterable[Body], ended: datetime) -> str | None:
    """Why the kubelet ended the container that `ended` then; None when it ended by itself.

    The kubelet gives a probe's failure as a reason only there, and then lets the container drain: what was started
    since is another container.
    """
    told = [(at, event) for event in events if (at := parse_time(_said_at(event))) is not None and at <= ended]
    kills = [(at, str(event.get("message"))) for at, event in told if event.get("reason") == "Killing"]
    at, words = max(kills, default=(ended, ""))
    started = any(event.get("reason") == "Started" and moment > at for moment, event in told)
    return words if _PROBE.search(words) and not started else None


def _times(event: Body) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def _said_at(event: Body) -> str:
    """RFC 3339 in UTC, which sorts as text."""
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found out about a service's pods beside their own status."""

    room: Room | None = None
    """None while no pod waits for an extended resource, or where the operator may not look at nodes."""
    warnings: Mapping[str, Warned] = field(default_factory=dict)
    """The latest by pod uid, of pods that do not get as far as running."""
    pulls: Mapping[str, int] = field(default_factory=dict)
    """How often at least the image was tried, by pod uid, of pods whose image does not come."""
    kills: Mapping[str, str] = field(default_factory=dict)
    """Why the kubelet ended the engine, by pod uid, of pods where it did so last."""
    refused: str | None = None
    """Why pods of groups cannot be made, in the API server's words."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """The pool of nodes that a pod is on, by pod uid, where its node tells one."""


def extended_requests(spec: Body) -> dict[str, int]:
    """What a pod asks of its node beside CPU, memory and storage, by resource name.

    Source: `PodRequests` in k8s.io/component-helpers/resource: sidecars add up with what starts after them.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        wants = _container_requests(container)
        _raise_to(peak, _plus(running, wants))
        if container.get("restartPolicy") == "Always":
            running = _plus(running, wants)
    for container in spec.get("containers") or ():
        running = _plus(running, _container_requests(container))
    _raise_to(peak, running)
    return {name: amount for name, amount in peak.items() if amount}


def _container_requests(container: Body) -> dict[str, int]:
    """Requests of extended resources equal their limits, and either may be left out."""
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity.to_bytes(str(amount)) for name, amount in given.items() if _is_extended(name)}


def _is_extended(resource: str) -> bool:
    """Source: `IsExtendedResourceName` in k8s.io/component-helpers/scheduling/corev1."""
    return "/" in resource and "kubernetes.io/" not in resource


def _plus(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def _raise_to(peak: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        peak[name] = max(peak.get(name, 0), amount)


def _takes(node: Body, resource: str) -> int:
    """How much of the resource the node has for pods; 0 when it takes none now."""
    if not takes_pods(node):
        return 0
    return quantity.to_bytes(str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")))
