"""Why pods are not ready, of several causes and many pods the one that somebody can act on first."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.facts.kubelet_words import does_not_know_yet, names_missing_key
from pagefleet_operator.facts.observed import Evidence, Pod, PodProblem, Room, Warned

_GRAVEST_FIRST = (
    Reason.OUT_OF_MEMORY,
    Reason.CRASH_LOOP,
    Reason.MODEL_FETCH_FAILED,
    Reason.IMAGE_PULL_FAILED,
    Reason.CONFIG_MISSING,
    Reason.MOUNT_FAILED,
    Reason.UNSCHEDULABLE,
    Reason.NODE_LOST,
    Reason.NODE_REFUSED,
    Reason.EVICTED,
    Reason.ENGINE_UNREADY,
    Reason.STARTING,
)
_CAUSES_TOLD = 3
_OF_MOUNTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_MADE_UP_NAME = re.compile(r'^(pods|Pod) "[^"]*" is (forbidden|invalid): ')
_REFUSALS = {
    "exceeded quota": Reason.QUOTA_EXCEEDED,
    "error looking up service account": Reason.SERVICE_ACCOUNT_MISSING,
    "admission webhook": Reason.ADMISSION_DENIED,
    "failed calling webhook": Reason.ADMISSION_DENIED,
    "ValidatingAdmissionPolicy": Reason.ADMISSION_DENIED,
    "violates PodSecurity": Reason.ADMISSION_DENIED,
}
"""By a part of the API server's words: they are the only thing that comes with a ReplicaSet's failure."""

_Sick = tuple[Pod, PodProblem]


def told(pods: Iterable[Pod], evidence: Evidence) -> Verdict | None:
    """The commonest cause and then the others, each with a pod that has it and how many have; None without any.

    Pods that are only starting are told of when nothing else is wrong. While pods of the latest template have
    something to tell, those of older ones are not asked: what ailed them may be what the new template puts right.
    """
    sick = [(pod, _known_better(pod, pod.problem, evidence)) for pod in pods if pod.problem is not None]
    latest = max((pod for pod, _ in sick), key=_born, default=None)
    sick = [(pod, problem) for pod, problem in sick if latest and pod.template_hash == latest.template_hash]
    sick.sort(key=lambda pair: (_GRAVEST_FIRST.index(pair[1].reason), pair[0].name))
    groups = [list(group) for _, group in groupby(sick, key=lambda pair: pair[1].reason)]
    groups.sort(key=lambda group: (_is_start(group), -len(group)))
    if not groups:
        return None
    worth_telling = [group for group in groups if not _is_start(group)][:_CAUSES_TOLD] or groups
    words = "; ".join(_group(group) for group in worth_telling)
    return Verdict(False, groups[0][0][1].reason, words)


def _born(pod: Pod) -> float:
    return pod.created.timestamp() if pod.created else 0.0


def _is_start(group: Sequence[_Sick]) -> bool:
    return group[0][1].reason is Reason.STARTING


def _group(group: Sequence[_Sick]) -> str:
    pod, problem = group[0]
    others = "" if len(group) == 1 else f" ({len(group)} pods)"
    return f"{pod.name}: {problem.message}{others}"


def _known_better(pod: Pod, problem: PodProblem, evidence: Evidence) -> PodProblem:
    """A pod's own problem with what was found out about it."""
    if problem.reason is Reason.UNSCHEDULABLE and evidence.room is not None:
        return replace(problem, message=problem.message + _room(pod, evidence.room))
    if problem.reason is Reason.IMAGE_PULL_FAILED and pod.uid in evidence.pulls:
        return replace(problem, message=f"{problem.message} (tried {_times(evidence.pulls[pod.uid])})")
    if problem.reason is Reason.CRASH_LOOP and pod.uid in evidence.kills:
        return replace(problem, message=f"{problem.message}; the kubelet ended it: {evidence.kills[pod.uid]}")
    warned = evidence.warnings.get(pod.uid)
    if pod.creating is not None and warned is not None:
        return PodProblem(_hindrance(warned), f"{warned.reason}: {warned.message}", problem.since)
    return problem


def _room(pod: Pod, room: Room) -> str:
    """How many are free, beside the scheduler's words, which only say that it is not enough."""
    needed = pod.extended.get(room.resource)
    if needed is None:
        return ""
    if not room.allocatable:
        return f"; it needs {needed} {room.resource}, which no node has"
    free = f"{room.most_free} free on the node with most left, {room.total_free} of {room.allocatable} on all nodes"
    return f"; it needs {needed} {room.resource}: {free}"


def _times(pulls: int) -> str:
    return "once so far" if pulls == 1 else f"at least {pulls} times"


def _hindrance(warned: Warned) -> Reason:
    if names_missing_key(warned.message):
        return Reason.CONFIG_MISSING
    if does_not_know_yet(warned.message):
        return Reason.STARTING
    return Reason.MOUNT_FAILED if warned.reason in _OF_MOUNTS else Reason.ENGINE_UNREADY


def refusal(words: str) -> Verdict:
    """Why the API server takes an object or a pod not, in its own words.

    The ReplicaSet controller makes up a new name for each try: without it the words stay the same.
    """
    said = _MADE_UP_NAME.sub("", words)
    reason = next((reason for part, reason in _REFUSALS.items() if part in said), Reason.APPLY_FAILED)
    return Verdict(False, reason, said)
