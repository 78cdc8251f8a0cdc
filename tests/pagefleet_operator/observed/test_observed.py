from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.observed import (
    DeploymentView,
    Observed,
    Pod,
    PodProblem,
    Progress,
    Sample,
    format_second,
    format_time,
    parse_time,
)
from pagefleet_operator.facts.starts import Start
from tests.pagefleet_operator.plan.build import at, load

DEADLINE = "ProgressDeadlineExceeded"
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = "2026-01-01T00:00:00Z"


def body(status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u", "labels": {"pagefleet.io/serving": "true"}, **meta}, "status": status}


def engine(state: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "True"}
    status = {"name": "engine", "state": state or {}, **more}
    return {"conditions": [scheduled], "containerStatuses": [{"name": "sidecar"}, status]}


def test_an_empty_pod_is_readable() -> None:
    pod = Pod.from_object({})
    assert (pod.name, pod.serving, pod.ready, pod.active) == ("", False, False, True)
    assert pod.problem == PodProblem(Reason.STARTING, "waits for the scheduler")


def test_every_field_of_a_serving_pod_is_read() -> None:
    status = engine({"running": {"startedAt": STAMP}}, started=True, restartCount=2)
    status["conditions"].append({"type": "Ready", "status": "True"})
    found = Pod.from_object(
        body(
            {**status, "podIP": "10.0.0.7"},
            creationTimestamp=STAMP,
            labels={"pagefleet.io/serving": "true", "pod-template-hash": "abc"},
        )
    )
    assert found == Pod(
        name="p",
        uid="u",
        ip="10.0.0.7",
        created=MOMENT,
        ready=True,
        serving=True,
        started=True,
        running=True,
        template_hash="abc",
        restarts=2,
        start=Start(created=MOMENT),
    )


def test_a_drain_is_read_from_label_and_annotations() -> None:
    def pod(cost: str) -> Pod:
        notes = {"pagefleet.io/drain-started": STAMP, "controller.kubernetes.io/pod-deletion-cost": cost}
        return Pod.from_object(body({}, labels={"pagefleet.io/serving": "false"}, annotations=notes))

    assert (pod("-1000").draining, pod("-1000").leaving, pod("-1000").drain_started) == (True, False, MOMENT)
    assert (pod("-2000").draining, pod("-2000").leaving) == (False, True)
    assert (pod("many").draining, pod("many").deletion_cost) == (True, None)


@pytest.mark.parametrize(
    "gone", [body({"phase": "Failed"}), body({"phase": "Succeeded"}), body({}, deletionTimestamp=STAMP)]
)
def test_a_pod_that_is_gone_is_not_active(gone: dict[str, Any]) -> None:
    assert not Pod.from_object(gone).active


AWAY = "its node is away: "
SILENT = "its kubelet reports nothing any more"
RPC = "rpc error: code = NotFound desc = "
BACK_OFF_PULL = 'Back-off pulling image "a:1": ErrImagePull: '
PROBE_FAILS = "the engine runs and its readiness probe fails"


def away(ready_condition: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    """A pod whose container runs, with a Ready condition that is False."""
    status = engine({"running": {}}, started=True, ready=ready)
    status["conditions"].append({"type": "Ready", "status": "False", **ready_condition})
    return status


def begun(unready_since: str) -> dict[str, Any]:
    """A pod whose engine started at second 5, and that is not ready since then."""
    status = engine({"running": {"startedAt": "2026-01-01T00:00:05Z"}}, started=True)
    status["conditions"].append(
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": unready_since}
    )
    return status


@pytest.mark.parametrize(
    ("state", "restarts", "ready", "since"),
    [
        pytest.param({"waiting": {"reason": "CrashLoopBackOff"}}, 3, "False", STAMP, id="waits for its next try"),
        pytest.param({"running": {"startedAt": "2026-01-01T00:05:00Z"}}, 3, "False", STAMP, id="tries again"),
        pytest.param({"terminated": {"exitCode": 1}}, 3, "False", STAMP, id="ended"),
        pytest.param({"running": {"startedAt": "2025-12-31T00:00:00Z"}}, 3, "False", None, id="runs as it did"),
        pytest.param({"running": {}}, 3, "False", None, id="runs since nobody knows when"),
        pytest.param({"running": {"startedAt": STAMP}}, 0, "False", None, id="starts for the first time"),
        pytest.param({"waiting": {}}, 3, "Unknown", None, id="its node is away"),
        pytest.param({"running": {"startedAt": STAMP}}, 3, "True", None, id="is ready"),
    ],
)
def test_what_a_pod_held_is_gone_with_the_engine_that_was_ready(
    state: dict[str, Any], restarts: int, ready: str, since: str | None
) -> None:
    status = engine(state, restartCount=restarts)
    status["conditions"].append({"type": "Ready", "status": ready, "lastTransitionTime": STAMP})
    assert Pod.from_object(body(status)).crashed_since == (None if since is None else MOMENT)


NO_CLAIM = '0/2 nodes are available: persistentvolumeclaim "models" not found. not found'
SCHEDULED = {"type": "PodScheduled", "status": "True"}
SIDECAR = {"name": "sidecar", "state": {"running": {}}, "started": True}
CRASH = {"terminated": {"exitCode": 1, "reason": "Error", "message": "model not found\n", "finishedAt": STAMP}}
OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
UNSURE = {
    "reason": "CreateContainerConfigError",
    "message": "failed to sync secret cache: timed out waiting for the condition",
}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}


def download(state: dict[str, Any], name: str = "fetch-model") -> dict[str, Any]:
    """The status of a pod whose model is brought by an init container in this state."""
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    return {"conditions": scheduled, "initContainerStatuses": [{"name": name, "state": state}]}


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (
            engine({"waiting": {"reason": "ErrImagePull", "message": f"{RPC}not found"}}, image="a:1"),
            Reason.IMAGE_PULL_FAILED,
            "cannot pull a:1: not found",
        ),
        (
            engine(
                {"waiting": {"reason": "ImagePullBackOff", "message": f"{BACK_OFF_PULL}{RPC}not found"}}, image="a:1"
            ),
            Reason.IMAGE_PULL_FAILED,
            "cannot pull a:1: not found",
        ),
        (
            engine({"waiting": {"reason": "InvalidImageName"}}, image="A:b:c"),
            Reason.IMAGE_PULL_FAILED,
            "cannot pull A:b:c: InvalidImageName",
        ),
        (
            engine(BACK_OFF, lastState=CRASH, restartCount=3),
            Reason.CRASH_LOOP,
            "exit code 1, 3 restarts: model not found",
        ),
        (engine(BACK_OFF, lastState={"terminated": {"exitCode": 0}}), Reason.CRASH_LOOP, "exit code 0, 0 restarts"),
        (engine(CRASH), Reason.CRASH_LOOP, "exit code 1, 0 restarts: model not found"),
        (
            engine({"running": {}}, lastState=OOM, restartCount=1),
            Reason.OUT_OF_MEMORY,
            "its node ran out of memory; exit code 137 (SIGKILL), 1 restart",
        ),
        (
            engine({"running": {}}, lastState=OOM, restartCount=2, resources={"limits": {"memory": "64Mi"}}),
            Reason.OUT_OF_MEMORY,
            "passed its memory limit of 64Mi; exit code 137 (SIGKILL), 2 restarts",
        ),
        (
            engine({"running": {}}, started=True, lastState=OOM, restartCount=1),
            Reason.ENGINE_UNREADY,
            "the engine runs and its readiness probe fails",
        ),
        (engine({"running": {}}, started=False), Reason.STARTING, "the engine loads the model"),
        (engine({"waiting": {"reason": "ContainerCreating"}}), Reason.STARTING, "the container is being created"),
        (engine({"terminated": {"exitCode": 0}}), Reason.STARTING, "the container is being created"),
        (
            engine({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "k" not found'}}),
            Reason.CONFIG_MISSING,
            'secret "k" not found',
        ),
        (
            engine({"waiting": {"reason": "CreateContainerConfigError", "message": "image will run as root"}}),
            Reason.ENGINE_UNREADY,
            "CreateContainerConfigError: image will run as root",
        ),
        (engine({"waiting": UNSURE}), Reason.STARTING, ": ".join(UNSURE.values())),
        (
            download(CRASH, "copy-model"),
            Reason.MODEL_FETCH_FAILED,
            "the model cannot be copied out of the image of model.uri: exit code 1, 0 restarts: model not found",
        ),
        (
            download(CRASH, "place-copier"),
            Reason.MODEL_FETCH_FAILED,
            "the model cannot be copied out of the image of model.uri: exit code 1, 0 restarts: model not found",
        ),
        (
            {**engine(CRASH), **download({"terminated": {"exitCode": 0, "reason": "Completed"}}, "copy-model")},
            Reason.MODEL_FETCH_FAILED,
            "the model cannot be copied out of the image of model.uri: its container ended without a word; build it "
            "without the environment variable LD_TRACE_LOADED_OBJECTS",
        ),
        (
            {**engine(CRASH), **download({"terminated": {"exitCode": 0, "message": "copied"}}, "copy-model")},
            Reason.CRASH_LOOP,
            "exit code 1, 0 restarts: model not found",
        ),
        (
            {**engine(CRASH), **download({"terminated": {"exitCode": 0}})},
            Reason.CRASH_LOOP,
            "exit code 1, 0 restarts: model not found",
        ),
        *(
            (download({"running": {}}, name), Reason.STARTING, "the model is being copied out of its image")
            for name in ("place-copier", "copy-model")
        ),
        (
            download(CRASH),
            Reason.MODEL_FETCH_FAILED,
            "the model cannot be downloaded: exit code 1, 0 restarts: model not found",
        ),
        (
            download(CRASH, "fetch-adapter-1"),
            Reason.MODEL_FETCH_FAILED,
            "an adapter cannot be downloaded: exit code 1, 0 restarts: model not found",
        ),
        (
            download(CRASH, "fetch-draft"),
            Reason.MODEL_FETCH_FAILED,
            "the draft cannot be downloaded: exit code 1, 0 restarts: model not found",
        ),
        (
            download({"running": {}}, "fetch-adapter-1"),
            Reason.STARTING,
            "an adapter is being downloaded: the log of the container fetch-adapter-1 tells how far",
        ),
        (
            download({"running": {}}),
            Reason.STARTING,
            "the model is being downloaded: the log of the container fetch-model tells how far",
        ),
        (
            download({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            Reason.OUT_OF_MEMORY,
            "its node ran out of memory; exit code 137 (SIGKILL), 0 restarts",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "True"}], "initContainerStatuses": [{"state": CRASH}]},
            Reason.CRASH_LOOP,
            "exit code 1, 0 restarts: model not found",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]},
            Reason.UNSCHEDULABLE,
            "0/2 nodes are available",
        ),
        (
            away({}, ready=True),
            Reason.NODE_LOST,
            AWAY + SILENT,
        ),
        (
            away({"reason": "NodeStatusUnknown", "message": "Kubelet stopped"}),
            Reason.NODE_LOST,
            f"{AWAY}Kubelet stopped",
        ),
        (
            {**away({"reason": "ContainersNotReady"}), "reason": "NodeLost", "message": "Node n is unresponsive"},
            Reason.NODE_LOST,
            f"{AWAY}Node n is unresponsive",
        ),
        (
            {**away({"reason": "ContainersNotReady"}), "phase": "Unknown"},
            Reason.NODE_LOST,
            AWAY + SILENT,
        ),
        (away({"reason": "ReadinessGatesNotReady"}, ready=True), Reason.ENGINE_UNREADY, PROBE_FAILS),
        (away({}, ready=False), Reason.ENGINE_UNREADY, PROBE_FAILS),
        (
            begun("2026-01-01T00:00:00Z"),
            Reason.STARTING,
            "the engine has started, and its readiness probe has not succeeded yet",
        ),
        (begun("2026-01-01T00:00:09Z"), Reason.ENGINE_UNREADY, PROBE_FAILS),
        (
            {"conditions": [{**SCHEDULED, "status": "False", "message": NO_CLAIM}]},
            Reason.MOUNT_FAILED,
            "the PersistentVolumeClaim models does not exist: create it, or name another one",
        ),
        (
            {**engine(OOM), "phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            Reason.EVICTED,
            "Evicted: low on memory",
        ),
        (
            {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"},
            Reason.NODE_REFUSED,
            "UnexpectedAdmissionError: no healthy devices present",
        ),
        (
            {
                "conditions": [SCHEDULED],
                "initContainerStatuses": [SIDECAR, {"name": "model", "state": {"running": {}}}],
            },
            Reason.STARTING,
            "the init container model runs",
        ),
        (
            {"conditions": [SCHEDULED], "initContainerStatuses": [SIDECAR]},
            Reason.STARTING,
            "the container is being created",
        ),
    ],
)
def test_a_pod_that_is_not_ready_says_why(status: dict[str, Any], reason: Reason, message: str) -> None:
    problem = Pod.from_object(body(status)).problem
    assert problem is not None
    assert (problem.reason, problem.message) == (reason, message)


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ({}, "an adapter is being downloaded: the log of the container fetch-adapter-0 tells how far"),
        (CRASH, "an adapter cannot be downloaded: exit code 1, 2 restarts: model not found"),
    ],
)
def test_a_download_that_the_kubelet_calls_started_is_still_waited_for(last: dict[str, Any], says: str) -> None:
    name, sidecar = "fetch-adapter-0", {"name": SIDECAR["name"], "restartPolicy": "Always"}
    fetch = {"name": name, "state": {"running": {}}, "started": True, "lastState": last, "restartCount": 2 * bool(last)}
    status = {"conditions": [SCHEDULED], "initContainerStatuses": [SIDECAR, fetch]}
    problem = Pod.from_object({**body(status), "spec": {"initContainers": [sidecar, {"name": name}]}}).problem
    assert problem is not None
    assert problem.message == says


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ('Back-off pulling image "m:1": ErrImagePull: not found', "m:1"),
        ('failed to resolve reference "docker.io/library/m:1"', "m:1"),
        ('failed to resolve reference "m:1-engine"', "m:1-engine"),
        ("not found", "m:1-engine"),
    ],
)
def test_of_an_image_that_a_container_mounts_its_own_name_is_told(words: str, image: str) -> None:
    status = engine({"waiting": {"reason": "ErrImagePull", "message": words}}, image="m:1-engine")
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "models", "image": {"reference": "m:1"}}]
    problem = Pod.from_object({**body(status), "spec": {"volumes": volumes}}).problem
    assert problem is not None
    assert problem.message.startswith(f"cannot pull {image}: ")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Traceback:\n  File x\nValueError: bad \n\n", "ValueError: bad"),
        ('{"event": "listening"}\n{"event": "core_lost", "reason": "no model"}\n', "no model"),
        ("ValueError: no room\n  at x\nRuntimeError: Engine failed. See root cause above.", "ValueError: no room"),
        ("RuntimeError: Engine failed. See root cause above.", "RuntimeError: Engine failed. See root cause above."),
        ('{"event": "core_lost"}', "core_lost"),
        ('{"level": "error"}', '{"level": "error"}'),
        ("137", "137"),
        ("x" * 600, "x" * 500),
        pytest.param("[" * 60_000, "[" * 500, id="deeper than can be read"),
    ],
)
def test_of_a_containers_log_the_last_line_is_told(message: str, told: str) -> None:
    ended = engine({"terminated": {"exitCode": 1, "message": message}})
    problem = Pod.from_object(body(ended)).problem
    assert problem is not None and problem.message == f"exit code 1, 0 restarts: {told}"


def test_the_limit_that_was_passed_is_the_containers_or_else_what_was_asked_for() -> None:
    asked = {"containers": [{"name": "sidecar"}, {"name": "engine", "resources": {"limits": {"memory": "2Gi"}}}]}
    pod = Pod.from_object({**body(engine(OOM)), "spec": asked})
    assert pod.problem is not None and "memory limit of 2Gi" in pod.problem.message
    kept = Pod.from_object({**body(engine(OOM, resources={"limits": {"memory": "1Gi"}})), "spec": asked})
    assert kept.problem is not None and "memory limit of 1Gi" in kept.problem.message


def test_a_lost_node_is_named() -> None:
    pod = Pod.from_object({**body(away({}, ready=True)), "spec": {"nodeName": "node2"}})
    assert pod.problem is not None and pod.problem.message == f"its node node2 is away: {SILENT}"


@pytest.mark.parametrize(
    ("status", "since"),
    [
        ({"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": STAMP}]}, MOMENT),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "lastTransitionTime": STAMP}]}, None),
        ({}, None),
    ],
)
def test_a_container_is_being_created_from_the_moment_that_a_node_has_its_pod(
    status: dict[str, Any], since: datetime | None
) -> None:
    assert Pod.from_object(body(status)).creating == since


@pytest.mark.parametrize(
    ("state", "more", "creating"),
    [
        ({"waiting": {"reason": "ContainerCreating"}}, {}, True),
        ({"waiting": {"reason": "ImagePullBackOff"}}, {}, False),
        ({"waiting": {"reason": "ContainerCreating"}}, {"restartCount": 1}, False),
        ({"running": {}}, {}, False),
        ({"terminated": {"exitCode": 1}}, {}, False),
    ],
)
def test_a_container_that_was_made_once_is_not_being_created(
    state: dict[str, Any], more: dict[str, Any], creating: bool
) -> None:
    status = engine(state, **more)
    status["conditions"][0]["lastTransitionTime"] = STAMP
    assert (Pod.from_object(body(status)).creating is not None) == creating


def test_a_pod_failed_when_its_conditions_changed_last() -> None:
    times = [{"type": "PodScheduled"}, {"lastTransitionTime": "2025-12-31T00:00:00Z"}, {"lastTransitionTime": STAMP}]
    problem = Pod.from_object(body({"phase": "Failed", "reason": "Evicted", "conditions": times})).problem
    assert problem is not None and problem.since == MOMENT


def test_a_deployment_is_read_with_what_it_lacks() -> None:
    assert DeploymentView.from_object({}) == DeploymentView(name="")
    assert DeploymentView.from_object({"spec": {"replicas": 0}}).replicas == 0


def test_every_field_of_a_deployment_is_read() -> None:
    view = DeploymentView.from_object(
        {
            "metadata": {
                "name": "d",
                "uid": "u",
                "generation": 4,
            },
            "spec": {"replicas": 3, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}},
            "status": {
                "observedGeneration": 4,
                "replicas": 3,
                "updatedReplicas": 3,
                "readyReplicas": 2,
                "availableReplicas": 1,
                "conditions": [
                    {
                        "type": "Progressing",
                        "status": "False",
                        "reason": "ProgressDeadlineExceeded",
                        "message": "stuck",
                    },
                    {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"},
                ],
            },
        }
    )
    assert view == DeploymentView(
        name="d",
        uid="u",
        generation=4,
        observed_generation=4,
        replicas=3,
        total=3,
        updated=3,
        ready=2,
        available=1,
        progressing=Progress("False", DEADLINE, "stuck"),
        replica_failure="exceeded quota: q",
        max_surge="25%",
        max_unavailable="0",
    )
    assert view.deadline_exceeded
    assert view.settled
    assert not view.two_templates


def test_a_roll_out_lasts_until_the_old_pods_are_gone() -> None:
    def rolls(**fields: Any) -> tuple[bool, bool]:
        seen = Observed(DeploymentView(name="d", **fields))
        return seen.two_templates, seen.rollout_in_progress

    assert rolls(generation=2, observed_generation=1) == (False, True)
    assert rolls(total=3, updated=2) == (True, True)
    assert rolls(total=2, updated=2, replicas=3) == (False, False)
    assert (Observed().two_templates, Observed().rollout_in_progress) == (False, False)


def test_a_deadline_of_an_earlier_change_says_nothing_of_the_latest() -> None:
    late = DeploymentView(name="d", generation=3, observed_generation=3, progressing=Progress("False", DEADLINE, "x"))
    assert late.deadline_exceeded
    assert not replace(late, generation=4).deadline_exceeded


def test_a_sample_counts_while_the_container_that_gave_it_runs() -> None:
    taken = Sample(load(3), at(0).monotonic_s, restarts=1)

    def seen(**changes: Any) -> Sample | None:
        pod = replace(Pod(name="p", uid="u", running=True, restarts=1), **changes)
        return Observed(pods=(pod,), samples={"u": taken}).sample(pod)

    assert seen() is taken
    assert seen(restarts=2) is None
    assert seen(running=False) is None
    assert seen(uid="other") is None


def test_a_container_that_ended_does_not_run() -> None:
    ended = Pod.from_object(body(engine(BACK_OFF, lastState=CRASH, restartCount=3)))
    assert (ended.started, ended.running, ended.restarts) == (True, False, 3)
    assert Pod.from_object(body(engine({"running": {}}, restartCount=3))).running


def test_times_survive_the_wire() -> None:
    moment = MOMENT.replace(microsecond=1500)
    assert parse_time(format_time(moment)) == moment
    assert format_second(moment) == STAMP
    assert parse_time("2026-01-01T00:00:00") == MOMENT
    assert parse_time("soon") is None
    assert parse_time(None) is None


def test_a_sample_ages() -> None:
    assert Sample(load(), at(0).monotonic_s).age_s(at(4)) == 4


def test_a_pod_is_silent_until_it_has_said_what_it_holds() -> None:
    pod = Pod(name="p", uid="u", ready=True, running=True)
    assert Observed(pods=(pod,)).silent
    assert not Observed(pods=(pod,), samples={"u": Sample(load(), 0)}).silent
    assert not Observed(pods=(replace(pod, ready=False),)).silent
    assert not Observed(pods=(replace(pod, foreign=True),)).silent, "nobody knows where its engine tells"
