"""Why pods are not ready, of several causes and many pods the one that somebody can act on first."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.observed import Evidence, Pod, PodProblem, Room

_GRAVEST_FIRST = (
    Reason.OUT_OF_MEMORY,
    Reason.CRASH_LOOP,
    Reason.IMAGE_PULL_FAILED,
    Reason.UNSCHEDULABLE,
    Reason.NODE_LOST,
    Reason.ENGINE_UNREADY,
    Reason.STARTING,
)
_CAUSES_TOLD = 3

_Sick = tuple[Pod, PodProblem]


def told(pods: Iterable[Pod], evidence: Evidence) -> Verdict | None:
    """The commonest cause and then the others, each with a pod that has it and how many have; None without any.

    Pods that are only starting are told of when nothing else is wrong.
    """
    sick = [(pod, pod.problem) for pod in pods if pod.problem is not None]
    sick.sort(key=lambda pair: (_GRAVEST_FIRST.index(pair[1].reason), pair[0].name))
    groups = [list(group) for _, group in groupby(sick, key=lambda pair: pair[1].reason)]
    groups.sort(key=lambda group: (_is_start(group), -len(group)))
    if not groups:
        return None
    worth_telling = [group for group in groups if not _is_start(group)][:_CAUSES_TOLD] or groups
    words = "; ".join(_group(group, evidence) for group in worth_telling)
    return Verdict(False, groups[0][0][1].reason, words)


def _is_start(group: Sequence[_Sick]) -> bool:
    return group[0][1].reason is Reason.STARTING


def _group(group: Sequence[_Sick], evidence: Evidence) -> str:
    pod, problem = group[0]
    others = "" if len(group) == 1 else f" ({len(group)} pods)"
    return f"{pod.name}: {_words(pod, problem, evidence)}{others}"


def _words(pod: Pod, problem: PodProblem, evidence: Evidence) -> str:
    if problem.reason is Reason.UNSCHEDULABLE and evidence.room is not None:
        return problem.message + _room(pod, evidence.room)
    return problem.message


def _room(pod: Pod, room: Room) -> str:
    """How many are free, beside the scheduler's words, which only say that it is not enough."""
    needed = pod.extended.get(room.resource)
    if needed is None:
        return ""
    free = f"{room.most_free} free on the node with most left, {room.total_free} of {room.allocatable} on all nodes"
    return f"; it needs {needed} {room.resource}: {free}"
