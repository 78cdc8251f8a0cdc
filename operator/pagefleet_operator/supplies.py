"""What pods need beside what the cluster gives to any: a model that is there, a size that fits. Pure values.

Whoever looks after one such need gives a `Supply`; `basis` makes of all of them what the pods are made from.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.capacity import Judgement
from pagefleet_operator.facts.knowledge import Knowledge
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.kinds import Kind
from pagefleet_operator.plan.prefetch import Prefetch, Stage


class Stays(Enum):
    """What goes on while something is missing. First pods always wait."""

    NOTHING = "pods are made of the spec where there are pods already"
    MODEL = "pods of the last roll-out, where those have another model"
    PLACE = "pods of the last roll-out, where those have another model or may go to other nodes"
    ALL = "pods of the last roll-out, whatever has changed since"


class Lack(NamedTuple):
    """Something that is missing, with what each condition says of it.

    ready: of pods that are not there. stalled: it will not come by itself. reconciling: it is on its way. urgent: it is
    told before whatever ails pods of an earlier roll-out, and after those that serve.
    """

    stays: Stays
    ready: Verdict
    stalled: Verdict | None = None
    reconciling: Verdict | None = None
    urgent: bool = False


class Create(NamedTuple):
    """Make an object that is never changed afterwards."""

    kind: Kind
    manifest: dict[str, Any]


class Own(NamedTuple):
    """Give a live object these owners."""

    kind: Kind
    live: Body
    owners: tuple[Body, ...]


class Delete(NamedTuple):
    """Remove an object as it was seen."""

    kind: Kind
    live: Body


Write = Create | Own | Delete


@dataclass(frozen=True, slots=True)
class Supply:
    """How one need is met.

    lack: what is missing; None when nothing is. cached: the condition `ModelCached`; None where this need is not about
    that. writes: what brings it on, and clears away what nobody needs, in this order.
    """

    lack: Lack | None = None
    cached: Verdict | None = None
    writes: tuple[Write, ...] = ()


def of_judgement(judgement: Judgement) -> Supply:
    """A size that fits, where the spec wants no pod without one."""
    verdict = judgement.verdict
    if verdict is None or not judgement.holds_back:
        return Supply()
    ready = Verdict(False, verdict.reason, f"no pod is made: {verdict.message}")
    if verdict.status is False:
        stalled = Verdict(True, Reason.TOO_LARGE, f"capacityPolicy is Enforce; {verdict.message}")
        return Supply(Lack(Stays.ALL, ready, stalled=stalled, urgent=True))
    reading = Verdict(True, Reason.READING_MODEL, verdict.message)
    return Supply(Lack(Stays.ALL, ready, reconciling=reading, urgent=True))


def of_nodes(knowledge: Knowledge) -> Supply:
    """Nodes that say how pods come to a model in an image, where that is to be decided."""
    if knowledge.mounts_image is not None:
        return Supply()
    words = "whether the nodes can mount the model's image is not known yet: the API server did not list them"
    ready = Verdict(False, Reason.STARTING, f"no pod is made: {words}")
    return Supply(Lack(Stays.ALL, ready, reconciling=Verdict(True, Reason.APPLYING, words)))


_FETCHES = {Stage.CACHED: Reason.CACHED, Stage.FETCHING: Reason.FETCHING, Stage.FAILING: Reason.MODEL_FETCH_FAILED}


def of_prefetch(prefetch: Prefetch, writes: tuple[Write, ...] = (), *, stays: Stays = Stays.MODEL) -> Supply:
    """A model that is downloaded before pods are made; `stays` while it is not."""
    stage, words = prefetch.stage, prefetch.message
    cached = Verdict(stage is Stage.CACHED, _FETCHES[stage], words)
    if stage is Stage.CACHED:
        return Supply(None, cached, writes)
    reason = Reason.MODEL_FETCH_FAILED if stage is Stage.FAILING else Reason.MODEL_NOT_CACHED
    ready = Verdict(False, reason, f"pods wait for their model: {words}")
    reconciling = Verdict(True, Reason.FETCHING, f"the model comes first: {words}")
    return Supply(Lack(stays, ready, reconciling=reconciling), cached, writes)


def refused(words: str) -> Lack:
    """The cluster does not have what the pods need, and will not get it by waiting."""
    verdict = Verdict(False, Reason.APPLY_FAILED, words)
    return Lack(Stays.NOTHING, verdict, stalled=verdict._replace(status=True), urgent=True)


def untried() -> Lack:
    """Whether the cluster has what the pods need shows when it is asked for."""
    return Lack(Stays.NOTHING, Verdict(False, Reason.STARTING, "pods are being created"))
