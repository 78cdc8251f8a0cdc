"""Why a pod is not ready, read from its status in the words of whoever knows: scheduler, kubelet, engine."""

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_api.wording import counted
from pagefleet_operator.facts.kubelet_words import does_not_know_yet, names_missing_key, of_registry
from pagefleet_operator.facts.preparing import COPY_CONTAINERS, NOT_COPIED, failing, fetched_by

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
_EVICTIONS = frozenset({"Evicted", "Preempting", "Terminated", "NodeShutdown"})
_NORMAL_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_SEE_ABOVE = re.compile(r"(?i)see .*\babove\b")
"""vLLM's last line says that its engine failed, and that the cause is further up."""
_ERROR = re.compile(r"\b\w*(Error|Exception): ")
_SAYING = ("reason", "error", "text", "event")
"""Fields of a log line in JSON, the most telling first."""
_TRACED = "its container ended without a word; build it without the environment variable LD_TRACE_LOADED_OBJECTS"
_SIGNALLED = 128
_LONGEST_WORDS = 500

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


def crashed_since(status: Body, container: Body) -> datetime | None:
    """Since when a pod is not ready whose engine crashed; None while it is ready, or runs the engine that was."""
    condition = condition_of(status, "Ready") or {}
    since = parse_time(condition.get("lastTransitionTime"))
    if condition.get("status") != "False" or since is None or not container.get("restartCount"):
        return None
    running = (container.get("state") or {}).get("running")
    began = since if running is None else parse_time(running.get("startedAt"))
    return since if began is not None and began >= since else None


def pod_problem(spec: Body, status: Body, container: Body) -> PodProblem:
    """Why a pod that is not ready is not: `container` is its engine's status, empty before there is one."""
    if status.get("phase") == "Failed" and status.get("reason"):
        return _failed(status)
    silent = _silent_copy(status)
    if silent is not None:
        return silent
    waits = [container, *(status.get("initContainerStatuses") or ())]
    found = [problem for item in waits if (problem := _container_problem(spec, item)) is not None]
    return found[0] if found else _pod_wide(spec, status, container)


def creating_since(status: Body, container: Body) -> datetime | None:
    """When a node got a pod whose container is still being created; None for every other pod.

    Images, mounts and the network come in this time, and of what hinders them only Events tell.
    """
    scheduled, state = condition_of(status, "PodScheduled") or {}, container.get("state") or {}
    reason = (state.get("waiting") or {}).get("reason", "ContainerCreating")
    begun = container.get("restartCount") or {"running", "terminated"} & state.keys()
    if scheduled.get("status") != "True" or begun or reason not in _NORMAL_WAITS:
        return None
    return parse_time(scheduled.get("lastTransitionTime"))


def _container_problem(spec: Body, container: Body) -> PodProblem | None:
    """A container that cannot start, or ended: the image, the crash, or the kubelet's refusal."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        return PodProblem(Reason.IMAGE_PULL_FAILED, _image(_pulled(spec, container, message), reason, message))
    running_again = "running" in state and container.get("started") and not _goes_before(spec, container)
    ended = None if running_again else state.get("terminated") or last.get("terminated")
    if ended and (ended.get("exitCode") or reason == "CrashLoopBackOff" or ended.get("reason") == "OOMKilled"):
        crash = _crash(ended, int(container.get("restartCount") or 0), _memory_limit(spec, container))
        what = failing(str(container.get("name", "")))
        return crash if what is None else _of_model(crash, what)
    if reason and names_missing_key(message):
        return PodProblem(Reason.CONFIG_MISSING, message)
    if reason and reason not in _NORMAL_WAITS:
        passing = does_not_know_yet(message)
        return PodProblem(Reason.STARTING if passing else Reason.ENGINE_UNREADY, f"{reason}: {message}")
    return None


def _pulled(spec: Body, container: Body, words: str) -> str:
    """The image that the kubelet speaks of: the container's own, or one that it mounts, as it tells of both there.

    Source: `toKubeContainerImageVolumes` in kubernetes/pkg/kubelet/kuberuntime.
    """
    own = str(container.get("image", ""))
    mounted = [str(volume["image"].get("reference", "")) for volume in spec.get("volumes") or () if volume.get("image")]
    return max((image for image in (own, *mounted) if image and image in words), key=len, default=own)


def _image(image: str, reason: str, message: str) -> str:
    words = of_registry(message) or reason
    return f"cannot pull {image}: {words}"


def _crash(ended: Body, restarts: int, memory_limit: str | None) -> PodProblem:
    code, moment = int(ended.get("exitCode") or 0), parse_time(ended.get("finishedAt"))
    times = counted(restarts, "restart")
    words = _last_words(str(ended.get("message") or ""))
    tail = f"exit code {_exit(code)}, {times}" + (f": {words}" if words else "")
    if ended.get("reason") == "OOMKilled":
        past = f"passed its memory limit of {memory_limit}" if memory_limit else "its node ran out of memory"
        return PodProblem(Reason.OUT_OF_MEMORY, f"{past}; {tail}", moment)
    return PodProblem(Reason.CRASH_LOOP, tail, moment)


def _of_model(crash: PodProblem, what: str) -> PodProblem:
    """The engine did not crash: it has not begun, as its model could not be brought there."""
    failed = crash.reason is Reason.CRASH_LOOP
    words = f"{what}: {crash.message}"
    return PodProblem(Reason.MODEL_FETCH_FAILED, words, crash.since) if failed else crash


def _silent_copy(status: Body) -> PodProblem | None:
    """A copy that went well says so. One that did not begin, though it ended well, says nothing: see `copier.TOLD`."""
    copies = [
        (one.get("state") or {}).get("terminated")
        for one in status.get("initContainerStatuses") or ()
        if one.get("name") == labels.COPY_CONTAINER
    ]
    silent = [ended for ended in copies if ended and not ended.get("exitCode") and not ended.get("message")]
    if not silent:
        return None
    words = f"{NOT_COPIED}: {_TRACED}"
    return PodProblem(Reason.MODEL_FETCH_FAILED, words, parse_time(silent[0].get("finishedAt")))


def _exit(code: int) -> str:
    """With the signal that ended the process, where one did."""
    try:
        return f"{code} ({signal.Signals(code - _SIGNALLED).name})"
    except ValueError:
        return str(code)


def _last_words(message: str) -> str:
    """A container's last line, or what a program of ours says in it: the kubelet gives up to 80 lines of the log."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if _SEE_ABOVE.search(last):
        last = next((line for line in reversed(lines[:-1]) if _ERROR.search(line)), last)
    try:
        fields = json.loads(last)
    except (ValueError, RecursionError):
        return last[:_LONGEST_WORDS]
    said = [fields[name] for name in _SAYING if name in fields] if isinstance(fields, dict) else []
    return str((said or [last])[0])[:_LONGEST_WORDS]


def _memory_limit(spec: Body, container: Body) -> str | None:
    """The limit that held when it ran, else the one that was asked for."""
    asked = [one for one in spec.get("containers") or () if one.get("name") == container.get("name")]
    for part in (container, *asked):
        limit = ((part.get("resources") or {}).get("limits") or {}).get("memory")
        if limit is not None:
            return str(limit)
    return None


def _goes_before(spec: Body, container: Body) -> bool:
    """An init container that ends before the engine begins. A kubelet (1.34) calls it started once it runs."""
    ordinary = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") != "Always"]
    return any(one.get("name") == container.get("name") for one in ordinary)


def _works(spec: Body, container: Body) -> bool:
    """It runs, and is no sidecar that has started: what comes after it waits."""
    waited_for = not container.get("started") or _goes_before(spec, container)
    return "running" in (container.get("state") or {}) and waited_for


def _failed(status: Body) -> PodProblem:
    """The kubelet would not take the pod, or put it out. A pod's conditions change for the last time when that is."""
    moments = [parse_time(one.get("lastTransitionTime")) for one in status.get("conditions") or ()]
    reason = Reason.EVICTED if status["reason"] in _EVICTIONS else Reason.NODE_REFUSED
    since = max((moment for moment in moments if moment is not None), default=None)
    return PodProblem(reason, f"{status['reason']}: {status.get('message', '')}", since)


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


def _was_never_ready(status: Body, container: Body) -> bool:
    """Since its engine was started last: the first probe comes a moment after the start is over.

    A pod is not ready from its creation, or its last crash, on: a later moment is that of a probe that failed again.
    """
    begun = parse_time(((container.get("state") or {}).get("running") or {}).get("startedAt"))
    unready = parse_time((condition_of(status, "Ready") or {}).get("lastTransitionTime"))
    return begun is not None and unready is not None and unready <= begun


def _node_lost(spec: Body, status: Body) -> PodProblem:
    ready = condition_of(status, "Ready") or {}
    words = status.get("message") or ready.get("message") or "its kubelet reports nothing any more"
    where = f"its node {spec['nodeName']}" if spec.get("nodeName") else "its node"
    return PodProblem(Reason.NODE_LOST, f"{where} is away: {words}", parse_time(ready.get("lastTransitionTime")))


def _pod_wide(spec: Body, status: Body, container: Body) -> PodProblem:
    """No container is in trouble: the scheduler, the start, or the readiness probe holds the pod."""
    scheduled = condition_of(status, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        moment = parse_time(scheduled.get("lastTransitionTime"))
        words = scheduled.get("message") or scheduled.get("reason", "")
        missing = _NO_CLAIM.search(words)
        if missing:
            what = f"the PersistentVolumeClaim {missing[1]} does not exist: create it, or name another one"
            return PodProblem(Reason.MOUNT_FAILED, what, moment)
        return PodProblem(Reason.UNSCHEDULABLE, words, moment)
    if not scheduled:
        return PodProblem(Reason.STARTING, "waits for the scheduler")
    if "running" not in (container.get("state") or {}):
        preparing = [one["name"] for one in status.get("initContainerStatuses") or () if _works(spec, one)]
        for name in filter(fetched_by, preparing):
            where = f"the log of the container {name} tells how far"
            return PodProblem(Reason.STARTING, f"{fetched_by(name)} is being downloaded: {where}")
        if COPY_CONTAINERS & set(preparing):
            return PodProblem(Reason.STARTING, "the model is being copied out of its image")
        if preparing:
            return PodProblem(Reason.STARTING, f"the init container {preparing[0]} runs")
        return PodProblem(Reason.STARTING, "the container is being created")
    if _node_is_away(status, container):
        return _node_lost(spec, status)
    if container.get("started") and _was_never_ready(status, container):
        return PodProblem(Reason.STARTING, "the engine has started, and its readiness probe has not succeeded yet")
    if container.get("started"):
        return PodProblem(Reason.ENGINE_UNREADY, "the engine runs and its readiness probe fails")
    return PodProblem(Reason.STARTING, "the engine loads the model")
