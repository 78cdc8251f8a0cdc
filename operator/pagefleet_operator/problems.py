"""Why a pod is not ready, read from its status in the words of whoever knows: scheduler, kubelet, engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pagefleet_api.reasons import Reason

_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_NODE_REASONS = frozenset({"NodeLost", "NodeStatusUnknown"})
_NORMAL_WAITS = frozenset({"ContainerCreating", "PodInitializing"})

Body = Mapping[str, Any]
"""An object, or a part of one, as the API server gives it."""


@dataclass(frozen=True, slots=True)
class PodProblem:
    """What keeps a pod from being ready, with the cause's own words."""

    reason: Reason
    message: str
    since: datetime | None = None


def parse_time(text: object) -> datetime | None:
    """An RFC 3339 time; None when absent or not one."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def condition_of(status: Body, kind: str) -> Body | None:
    """The condition of type `kind` in a status."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Body = condition
            return found
    return None


def pod_problem(status: Body, container: Body) -> PodProblem:
    """Why a pod that is not ready is not: `container` is its engine's status, empty before there is one."""
    waits = [container, *(status.get("initContainerStatuses") or ())]
    found = [problem for item in waits if (problem := _container_problem(item)) is not None]
    return found[0] if found else _pod_wide(status, container)


def _container_problem(container: Body) -> PodProblem | None:
    """A container that cannot start, or ended: the image, the crash, or the kubelet's refusal."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        return PodProblem(Reason.IMAGE_PULL_FAILED, f"{reason}: {message or container.get('image', '')}")
    running_again = "running" in state and container.get("started")
    ended = None if running_again else state.get("terminated") or last.get("terminated")
    if ended and (ended.get("exitCode") or reason == "CrashLoopBackOff" or ended.get("reason") == "OOMKilled"):
        return _crash(ended, int(container.get("restartCount") or 0))
    if reason and reason not in _NORMAL_WAITS:
        return PodProblem(Reason.ENGINE_UNREADY, f"{reason}: {message}")
    return None


def _crash(ended: Body, restarts: int) -> PodProblem:
    code, words = ended.get("exitCode"), str(ended.get("message") or "").strip()
    tail = f": {words}" if words else ""
    moment = parse_time(ended.get("finishedAt"))
    if ended.get("reason") == "OOMKilled":
        return PodProblem(Reason.OUT_OF_MEMORY, f"OOMKilled, exit code {code}, {restarts} restarts{tail}", moment)
    return PodProblem(Reason.CRASH_LOOP, f"exit code {code}, {restarts} restarts{tail}", moment)


def _node_is_away(status: Body, container: Body) -> bool:
    """The node's controller says that the pod is not ready, not the kubelet, whose last word was that it is.

    Source: `MarkPodsNotReady` in kubernetes/pkg/controller/util/node: it sets the condition's status alone, while a
    kubelet gives a reason; older ones set the pod's reason.
    """
    ready = condition_of(status, "Ready") or {}
    reasons = {status.get("reason"), ready.get("reason")}
    if status.get("phase") == "Unknown" or reasons & _NODE_REASONS:
        return True
    return bool(ready) and not ready.get("reason") and bool(container.get("ready"))


def _node_lost(status: Body) -> PodProblem:
    ready = condition_of(status, "Ready") or {}
    words = status.get("message") or ready.get("message") or "it reports nothing since"
    return PodProblem(Reason.NODE_LOST, f"its node is away: {words}", parse_time(ready.get("lastTransitionTime")))


def _pod_wide(status: Body, container: Body) -> PodProblem:
    """No container is in trouble: the scheduler, the start, or the readiness probe holds the pod."""
    if status.get("phase") == "Failed":
        return PodProblem(Reason.ENGINE_UNREADY, f"{status.get('reason', 'Failed')}: {status.get('message', '')}")
    scheduled = condition_of(status, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        moment = parse_time(scheduled.get("lastTransitionTime"))
        return PodProblem(Reason.UNSCHEDULABLE, scheduled.get("message") or scheduled.get("reason", ""), moment)
    if not scheduled:
        return PodProblem(Reason.STARTING, "waits for the scheduler")
    if "running" not in (container.get("state") or {}):
        return PodProblem(Reason.STARTING, "the container is being created")
    if _node_is_away(status, container):
        return _node_lost(status)
    if container.get("started"):
        return PodProblem(Reason.ENGINE_UNREADY, "the engine runs and its readiness probe fails")
    return PodProblem(Reason.STARTING, "the engine loads the model")
