"""Changes under full load: rolled out, tried out and passed, tried out and taken back. No stream is cut off."""

import json
import time
from typing import Any

import pytest

from e2e import manifests
from e2e.kubectl import Json, Kubectl, Watch
from e2e.long_streams import Ridden, assert_all_whole, opened, ride
from e2e.service import KIND, Service, condition, is_ready, pod_load, wait_for
from e2e.sites import BoxSite
from e2e.warm_up import until_every_pod_answers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

STEP_S, SLOW_STEP_S = 0.25, 1.0
TRIED_TOKENS = 60
"""Of an answer during a trial that passes: some end before it does, so that there is something to compare."""
HELD_BY_LEAVING = 30


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl) -> Service:
    service = Service(kubectl, "change")
    engine = {"maxNumSeqs": 128}
    made = manifests.paced("change", STEP_S, engine=engine, replicas=2)
    config, _ = made["items"]
    config["data"]["slow.json"] = json.dumps({**json.loads(config["data"]["costs.json"]), "fixed_s": SLOW_STEP_S})
    kubectl.apply(manifests.text(made))
    service.wait_until_ready(2, 150)
    until_every_pod_answers(service, service.pods())
    return service


def patch(service: Service, **spec: Any) -> None:
    service.kubectl.run("patch", KIND, service.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def rolled_out(body: Json) -> bool:
    return is_ready(body, 2) and body["status"].get("updatedReplicas") == 2 and condition(body, "Reconciling") is None


def seats(service: Service) -> list[str]:
    """`--max-num-seqs` of each pod that stays."""
    args = [pod.body["spec"]["containers"][0]["args"] for pod in service.pods() if not pod.terminating]
    return sorted(each[each.index("--max-num-seqs") + 1] for each in args)


def on_trial(service: Service, watch: Watch, analysis: Json, **engine: Any) -> None:
    """Change the engine, and wait until it is compared with the earlier one."""
    patch(service, engine=engine, rollout={"analysis": analysis})
    watch.until(lambda body: "compares 1 pod" in (condition(body, "Reconciling") or {}).get("message", ""), 90)
    until_every_pod_answers(service, [pod for pod in service.pods() if not pod.terminating])
    assert service.deployment()["spec"].get("paused") is True, "no earlier pod goes before the comparison is over"


def test_a_rolling_update_cuts_no_stream_off(service: Service) -> None:
    def change() -> None:
        with service.watch() as watch:
            patch(service, engine={"maxNumSeqs": 96})
            generation = service.object()["metadata"]["generation"]
            watch.until(lambda body: body["metadata"]["generation"] == generation and rolled_out(body), 150)

    assert_all_whole(ride(service, change))
    assert seats(service) == ["96", "96"]


def test_a_change_that_answers_as_well_passes_its_trial_and_cuts_no_stream_off(service: Service) -> None:
    before = seats(service)
    analysis = {"trafficPercent": 33, "holdSeconds": 8, "maxTTFTRegression": "9", "maxITLRegression": "9"}
    with service.watch() as watch:
        on_trial(service, watch, analysis, maxNumSeqs=97)
        assert seats(service) == sorted([*before, "97"])
        with opened(service, TRIED_TOKENS, again=True) as load:
            wait_for("an earlier pod goes", lambda: len(seats(service)) < 3, 120, every_s=0.1)
            load.end()
            open_at_start, began_s = len(load.open_requests()), time.monotonic()
            wait_for("the new pods take over", lambda: seats(service) == ["97", "97"], 150)
            assert_all_whole(Ridden(load.wait(), open_at_start, time.monotonic() - began_s))
    service.wait_until_ready(2, 60)
    told = {event["reason"]: event["message"] for event in service.events()}
    print(told["TrialPassed"])
    assert told["TrialPassed"].startswith("TTFT p95") and "RolledBack" not in told


def test_a_change_that_answers_worse_is_taken_back_says_by_how_much_and_cuts_no_stream_off(service: Service) -> None:
    earlier = seats(service)
    before = {pod.name for pod in service.pods() if not pod.terminating}
    analysis = {"trafficPercent": 33, "holdSeconds": 30, "maxTTFTRegression": "9", "maxITLRegression": "0.5"}
    with service.watch() as watch:
        on_trial(service, watch, analysis, extraArgs=["--paced-costs=/etc/pagefleet/pace/slow.json"])
        (new,) = (pod for pod in service.pods() if pod.name not in before)
        with opened(service) as load:
            stalled = watch.until(lambda body: (condition(body, "Stalled") or {}).get("reason") == "SLORegression", 90)
            open_at_start, began_s = len(load.open_requests()), time.monotonic()
            held = pod_load(new).in_flight
            assert_all_whole(Ridden(load.wait(), open_at_start, time.monotonic() - began_s))
        wait_for("the new pod is gone", lambda: {pod.name for pod in service.pods()} == before, 90)
    words = (condition(stalled.body, "Stalled") or {})["message"]
    print(f"{words}; {held} streams on the pod that left")
    assert words.startswith("ITL p95") and "against" in words
    assert held >= HELD_BY_LEAVING
    assert seats(service) == earlier
    assert (condition(service.object(), "Ready") or {})["status"] == "True"
