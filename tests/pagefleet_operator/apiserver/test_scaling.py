"""Numbers of pods: up and down with the load, through drains and restarts, on real Deployments and ReplicaSets."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pagefleet_api import labels
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Engine, Fleet
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service

pytestmark = pytest.mark.apiserver

_WINDOW_S = 3
_DOOMED = {"lease_renew_s": 0.3, "lease_renew_deadline_s": 1.2, "write_timeout_s": 0.7, "lease_duration_s": 2}
"""Of an operator that will be killed: its successor waits for its Lease."""


def _autoscaled(namespace: str, name: str = "s") -> Json:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": _WINDOW_S}}
    scaling = {"minReplicas": 1, "maxReplicas": 6, "behavior": behavior}
    return service(namespace, name, autoscaling=scaling, drain={"timeoutSeconds": 60})


def _replicas(api: Api, namespace: str) -> int:
    found = api.get("deployments", namespace, "s")
    return int(found["spec"]["replicas"]) if found else 0


def _status(api: Api, namespace: str, name: str = "s") -> Json:
    found: Json = (api.get("inferenceservices", namespace, name) or {}).get("status", {})
    return found


def _moved(api: Api, namespace: str, name: str = "s", replicas: int = 3) -> str:
    """What is there in place of `replicas`, and why; empty while they are as they should be."""
    found = api.get("deployments", namespace, name)
    now = found["spec"]["replicas"] if found else 0
    return f"{name}: {now} replicas, {_status(api, namespace, name).get('autoscaling')}" if now != replicas else ""


def _events(api: Api, namespace: str, reason: str) -> list[str]:
    found = api.list("events", namespace)
    ours = [event for event in found if event.get("regarding", {}).get("kind") == "InferenceService"]
    return [str(event.get("note", "")) for event in ours if event["reason"] == reason]


@contextmanager
def _driven(fleet: Fleet, clients: Callable[[], int]) -> Iterator[None]:
    """A closed loop of clients in the background."""
    over = threading.Event()

    def drive() -> None:
        while not over.wait(0.1):
            fleet.share(clients())

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_load_takes_a_service_from_one_to_three_pods_and_back_without_an_aborted_answer(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    clients = 0
    with Fleet(api, namespace) as fleet, _driven(fleet, lambda: clients):
        api.create("inferenceservices", _autoscaled(namespace))
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves")
        clients = 20
        eventually(lambda: len(fleet.serving()) == 3, "three pods serve", 40)
        never(lambda: _moved(api, namespace), "the number moved under constant load", _WINDOW_S + 2)
        clients = 0
        eventually(lambda: len(fleet.pods()) == 1, "one pod is left", 30)
        assert len(fleet.seen) == 3
        assert _replicas(api, namespace) == 1
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 0
        assert operator.metric("pagefleet_drain_seconds_count") == 2
        assert _events(api, namespace, "ScaledUp")
        assert len(_events(api, namespace, "ScaledDown")) == 1
        assert _status(api, namespace)["autoscaling"]["desiredReplicas"] == 1
        status, text = operator.get(f"/decisions?namespace={namespace}&name=s")
        assert status == 200
        assert '"desired": 3' in text


_FAULTS = ("garbage", "negative", "empty", "error", "silence")


def test_bad_answers_never_move_the_number(api: Api, namespace: str, start: Start) -> None:
    operator = start().ready()
    clients = 20

    def moved() -> str:
        return "\n".join(filter(None, (_moved(api, namespace, fault) for fault in _FAULTS)))

    with Fleet(api, namespace) as fleet, _driven(fleet, lambda: clients):
        for fault in _FAULTS:
            api.create("inferenceservices", _autoscaled(namespace, fault))
        eventually(lambda: not moved() and len(fleet.serving()) == 3 * len(_FAULTS), "three pods of each serve", 60)
        for name in fleet.serving():
            _break(fleet.engines[name], name.partition("-")[0])
        clients = 0
        never(moved, "a bad answer moved a number", _WINDOW_S + 2)
        for fault in _FAULTS:
            assert operator.metric("pagefleet_scrape_errors_total", inference_service=fault) > 0


def _break(engine: Engine, fault: str) -> None:
    bodies = {
        "garbage": b"<html>",
        "negative": engine.load().replace(b'"running": ', b'"running": -'),
        "empty": b"",
    }
    if fault in bodies:
        engine.garbage = bodies[fault]
    elif fault == "error":
        engine.status = 503
    else:
        engine.close()


def test_pods_that_crash_and_crash_go_with_the_load_that_asked_for_them(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", _autoscaled(namespace))
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves")
        sound = fleet.serving()
        fleet.crashing = True
        fleet.set_load(running=8, waiting=12)
        eventually(lambda: len(fleet.pods()) == 3, "two pods more, which crash", 20)
        eventually(lambda: "no such model" in str(_status(api, namespace)["conditions"]), "the cause is told", 20)
        never(lambda: _moved(api, namespace), "the number moved under constant load", _WINDOW_S + 2)
        fleet.set_load()
        eventually(lambda: not _moved(api, namespace, replicas=1), "the number follows the load", 30)
        eventually(lambda: len(fleet.pods()) == 1, "the pods that crash are gone", 20)
        assert fleet.serving() == sound
        never(lambda: len(fleet.pods()) > 1, "the pods that crash were tried again", 2)


def test_an_operator_restart_under_load_never_takes_a_pod_away(api: Api, namespace: str, start: Start) -> None:
    first = start(**_DOOMED).ready()
    with Fleet(api, namespace) as fleet, _driven(fleet, lambda: 20):
        api.create("inferenceservices", _autoscaled(namespace))
        eventually(lambda: len(fleet.serving()) == 3, "three pods serve", 40)
        first.kill()
        start().ready()

        def moved() -> str:
            serving = len(fleet.serving())
            return _moved(api, namespace) or (f"{serving} serve" if serving < 3 else "")

        never(moved, "the number moved", _WINDOW_S + 2)
        assert len(fleet.seen) == 3


def test_a_restart_in_the_middle_of_scaling_up_doubles_nothing(api: Api, namespace: str, start: Start) -> None:
    first = start(**_DOOMED).ready()
    with Fleet(api, namespace, start_delay_s=2.5) as fleet, _driven(fleet, lambda: 20):
        api.create("inferenceservices", _autoscaled(namespace))
        eventually(lambda: _replicas(api, namespace) == 3, "three pods are asked for", 20)
        first.kill()
        start().ready()
        eventually(lambda: len(fleet.serving()) == 3, "three pods serve", 40)
        never(lambda: _replicas(api, namespace) != 3, "the number moved", 2)
        assert len(fleet.seen) == 3


def _busy_and_idle(fleet: Fleet) -> tuple[str, list[str]]:
    """Give one pod a running answer; its name, and the others'."""
    busy, *idle = fleet.serving()
    fleet.engines[busy].running = 1
    return busy, idle


def test_scaling_down_drains_idle_pods_first_and_keeps_the_busy_one(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", service(namespace, replicas=3))
        eventually(lambda: len(fleet.serving()) == 3, "three pods serve")
        busy, idle = _busy_and_idle(fleet)
        time.sleep(1)
        api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}}, "scale")
        eventually(lambda: len(fleet.pods()) == 1, "one pod is left", 20)
        assert fleet.serving() == [busy]
        eventually(lambda: sorted(fleet.deleted) == sorted(idle), "the idle ones went")
        assert len(eventually(lambda: _events(api, namespace, "Drained"), "the Event")) >= 1


def _drain_one_busy_pod(api: Api, namespace: str, fleet: Fleet) -> str:
    """Two busy pods, one of them asked to leave: its name once it drains."""
    api.create("inferenceservices", service(namespace, replicas=2))
    eventually(lambda: len(fleet.serving()) == 2, "two pods serve")
    fleet.set_load(running=2)
    time.sleep(1)
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}}, "scale")
    leaving = eventually(lambda: [pod for pod in fleet.pods() if _drains(pod)], "a pod drains")
    assert len(leaving) == 1
    return str(leaving[0]["metadata"]["name"])


def _drains(pod: Json) -> bool:
    return labels.DRAIN_STARTED in (pod["metadata"].get("annotations") or {})


def test_a_busy_pod_stays_until_its_answers_are_out(api: Api, namespace: str, start: Start) -> None:
    operator = start().ready()
    with Fleet(api, namespace) as fleet:
        leaving = _drain_one_busy_pod(api, namespace, fleet)
        eventually(lambda: fleet.engines[leaving].told[:1] == ["drain"], "the engine is told")
        never(lambda: leaving in fleet.deleted or _replicas(api, namespace) != 2, "a busy pod was taken", 3)
        fleet.engines[leaving].running = 0
        eventually(lambda: leaving in fleet.deleted, "the drained pod goes")
        assert len(fleet.pods()) == 1
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 0


def test_a_drain_is_taken_back_when_the_pod_is_wanted_again(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace) as fleet:
        leaving = _drain_one_busy_pod(api, namespace, fleet)
        api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 2}}, "scale")
        eventually(lambda: leaving in fleet.serving(), "the pod serves again")
        eventually(lambda: fleet.engines[leaving].told[-1] == "undrain", "the engine is told")
        assert len(fleet.seen) == 2


def test_a_restart_in_the_middle_of_a_drain_takes_that_pod_and_no_other(api: Api, namespace: str, start: Start) -> None:
    first = start(**_DOOMED).ready()
    with Fleet(api, namespace) as fleet:
        leaving = _drain_one_busy_pod(api, namespace, fleet)
        first.kill()
        second = start().ready()
        never(lambda: sum(map(_drains, fleet.pods())) != 1, "another pod drains", 2)
        fleet.engines[leaving].running = 0
        eventually(lambda: fleet.deleted == [leaving], "the drained pod goes")
        never(lambda: len(fleet.pods()) != 1, "more happened", 2)
        assert len(fleet.seen) == 2
        _is_sound(second)


def _is_sound(operator: OperatorProcess) -> None:
    assert not operator.events("pass_crashed"), operator.tail()


def test_a_drain_that_takes_too_long_ends_and_tells_how_many_answers_it_cut(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", service(namespace, replicas=2, drain={"timeoutSeconds": 3}))
        eventually(lambda: len(fleet.serving()) == 2, "two pods serve")
        fleet.set_load(running=2)
        time.sleep(1)
        api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}}, "scale")
        eventually(lambda: len(fleet.pods()) == 1, "the pod goes", 20)
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 2
        assert _events(api, namespace, "DrainTimedOut")


def test_zero_replicas_pause_a_service(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", service(namespace))
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves")
        api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 0}}, "scale")
        eventually(lambda: not fleet.pods() and _replicas(api, namespace) == 0, "no pod is left")
        conditions = {condition["type"]: condition for condition in _status(api, namespace)["conditions"]}
        assert conditions["Ready"]["reason"] == "Paused"
