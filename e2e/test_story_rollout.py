"""Changes under full load: rolled out, tried out and passed, tried out and taken back. No stream is cut off."""

import json
from typing import Any

import pytest

from e2e import manifests
from e2e.answers import Ask, summary
from e2e.exchange import Target
from e2e.kubectl import Json, Kubectl
from e2e.load import Load, LoadPlan
from e2e.long_streams import assert_all_whole, ride
from e2e.service import KIND, Service, condition, is_ready, wait_for
from e2e.sites import BoxSite
from e2e.warm_up import until_every_pod_answers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

STEP_S = 0.25
CLIENTS, TOKENS, LEAST = 16, 6, 200


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl) -> Service:
    service = Service(kubectl, "change")
    engine = {"maxNumSeqs": 128}
    kubectl.apply(manifests.text(manifests.paced("change", STEP_S, engine=engine, replicas=2)))
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


def ask(number: int) -> Ask:
    return Ask(f"{number}: tell me about rivers, bridges, bread, comets, chess and violins.", TOKENS)


def under_load(service: Service) -> Load:
    url = service.cluster_url()
    target = Target(url=lambda: url, model=service.name)
    return Load.start(LoadPlan(target=target, ask=ask, clients=CLIENTS))


def assert_nothing_was_cut_off(load: Load) -> None:
    result = summary(load.wait(120))
    assert result.faults == {}
    assert result.answered == result.requests >= LEAST


def test_a_rolling_update_cuts_no_stream_off(service: Service) -> None:
    def change() -> None:
        with service.watch() as watch:
            patch(service, engine={"maxNumSeqs": 96})
            generation = service.object()["metadata"]["generation"]
            watch.until(lambda body: body["metadata"]["generation"] == generation and rolled_out(body), 150)

    assert_all_whole(ride(service, change))
    assert seats(service) == ["96", "96"]


def test_a_change_that_answers_as_well_passes_its_trial(service: Service) -> None:
    before = seats(service)
    analysis = {"trafficPercent": 33, "holdSeconds": 15, "maxTTFTRegression": "9", "maxITLRegression": "9"}
    with under_load(service) as load, service.watch() as watch:
        patch(service, engine={"maxNumSeqs": 97}, rollout={"analysis": analysis})
        watch.until(lambda body: (condition(body, "Reconciling") or {}).get("reason") == "OnTrial", 20)
        wait_for("the Deployment is held", lambda: service.deployment()["spec"].get("paused") is True, 60)
        assert seats(service) == sorted([*before, "97"]), "no earlier pod goes before the comparison is over"
        wait_for("the new pods take over", lambda: seats(service) == ["97", "97"], 150)
        wait_for("enough was asked", lambda: len(load.answers) >= LEAST, 60)
        assert_nothing_was_cut_off(load)
    service.wait_until_ready(2, 60)
    told = {event["reason"]: event["message"] for event in service.events()}
    print(told["TrialPassed"])
    assert told["TrialPassed"].startswith("TTFT p95") and "RolledBack" not in told


def test_a_change_that_answers_worse_is_taken_back_and_says_by_how_much(service: Service) -> None:
    """The new pod has a single seat: whoever comes second waits for the first."""
    earlier = seats(service)
    before = {pod.name for pod in service.pods() if not pod.terminating}
    analysis = {"trafficPercent": 33, "holdSeconds": 60, "maxTTFTRegression": "0.5", "maxITLRegression": "4"}
    with under_load(service) as load, service.watch() as watch:
        patch(service, engine={"maxNumSeqs": 1}, rollout={"analysis": analysis})
        stalled = watch.until(lambda body: (condition(body, "Stalled") or {}).get("reason") == "SLORegression", 150)
        words = (condition(stalled.body, "Stalled") or {})["message"]
        print(words)
        assert words.startswith("TTFT p95") and "against" in words
        wait_for("the new pod is gone", lambda: {pod.name for pod in service.pods()} == before, 90)
        wait_for("enough was asked", lambda: len(load.answers) >= LEAST, 60)
        assert_nothing_was_cut_off(load)
    assert seats(service) == earlier
    assert (condition(service.object(), "Ready") or {})["status"] == "True"
