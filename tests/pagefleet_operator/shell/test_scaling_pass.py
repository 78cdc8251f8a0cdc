"""What one pass decides from what is kept of this service and of the others."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.service import InferenceService
from pagefleet_api.status import ColdStart, StartPhases, Status
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.autoscaling import Claim
from pagefleet_operator.facts.evidence import Evidence
from pagefleet_operator.facts.observed import DeploymentView, Latencies, Observed, Pod, PodProblem, Sample
from pagefleet_operator.facts.starts import Phases, Start
from pagefleet_operator.reconciling.passes import Recollection
from pagefleet_operator.reconciling.scaling import sample_max_age_s, scale
from tests.pagefleet_operator.autoscaling.build import START, at, load

LATER = START + timedelta(seconds=100)


def service(name: str, **scaling: Any) -> InferenceService:
    spec: dict[str, Any] = {"model": {"uri": "pkg://m"}, "engine": {"maxNumSeqs": 8}}
    spec |= {"autoscaling": {"maxReplicas": 9, **scaling}} if scaling else {}
    return InferenceService.parse({"metadata": {"namespace": "n", "name": name, "uid": name}, "spec": spec})


def key(name: str) -> ServiceKey:
    return ServiceKey("n", name)


def homeless(name: str, resource: str = "nvidia.com/gpu") -> Pod:
    problem = PodProblem(Reason.UNSCHEDULABLE, "no room", START)
    return Pod(name=name, uid=name, problem=problem, extended={resource: 1})


def busy(*more: Pod) -> Observed:
    """A pod with a long queue, and others."""
    serving = Pod(name="s", uid="s", ready=True, started=True, running=True, extended={"nvidia.com/gpu": 1})
    replicas = 1 + len(more)
    return Observed(
        DeploymentView(name="b", replicas=replicas), (serving, *more), {"s": Sample(load(30, 8), at(100).monotonic_s)}
    )


def test_the_service_of_lower_priority_yields_to_one_that_waits_for_the_same() -> None:
    kept = {
        key("low"): Recollection(service("low", priority=1)),
        key("high"): Recollection(service("high", priority=9)),
    }
    high = scale(key("high"), kept, busy(homeless("h")), Status(), at(100))
    assert high is not None and high.limited.reason is Reason.GPU_CAPACITY
    assert kept[key("high")].claim == Claim(9, "nvidia.com/gpu", since_s=at(100).monotonic_s)
    low = scale(key("low"), kept, busy(homeless("l")), Status(), at(100))
    assert low is not None and (low.desired, low.limited.reason) == (1, Reason.YIELDS_ROOM)
    assert "n/high" in low.limited.message
    again = scale(key("high"), kept, busy(homeless("h")), Status(), at(102))
    assert again is not None and again.limited.reason is Reason.GPU_CAPACITY


def test_nobody_yields_to_one_that_waits_for_something_else_or_no_more() -> None:
    kept = {
        key("low"): Recollection(service("low", priority=1)),
        key("high"): Recollection(service("high", priority=9)),
    }
    scale(key("high"), kept, Observed(DeploymentView(name="b"), (homeless("h", "amd.com/gpu"),)), Status(), at(100))
    low = scale(key("low"), kept, busy(), Status(), at(100))
    assert low is not None and low.desired > 1
    scale(key("high"), kept, busy(), Status(), at(102))
    assert not kept[key("high")].claim.holds(at(102).monotonic_s)


def test_one_that_never_finds_a_place_holds_nobody_back_for_ever_until_a_pod_of_it_gets_one() -> None:
    kept = {
        key("low"): Recollection(service("low", priority=1)),
        key("high"): Recollection(service("high", priority=9)),
    }

    def low_yields(seconds: float, high: Observed) -> bool:
        scale(key("high"), kept, high, Status(), at(seconds))
        scale(key("low"), kept, busy(), Status(), at(seconds))
        scene = kept[key("low")].scene
        return scene is not None and scene.fleet.rival == "n/high"

    assert low_yields(100, busy(homeless("h")))
    assert low_yields(999, busy(homeless("h")))
    assert not low_yields(1000, busy(homeless("h")))
    assert not low_yields(1001, busy(homeless("anew")))
    placed = replace(homeless("h"), problem=None, start=Start(scheduled=START + timedelta(seconds=1100)))
    assert low_yields(1100, busy(placed, homeless("anew")))


def test_a_group_has_got_a_place_when_all_of_its_pods_have_one() -> None:
    spec = {"model": {"uri": "pvc://c/m"}, "autoscaling": {"maxReplicas": 9}}
    engine = {"runtime": "vllm", "image": "v:1", "device": "cuda", "parallelism": {"pipeline": 2}}
    grouped = InferenceService.parse(
        {"metadata": {"namespace": "n", "name": "g", "uid": "g"}, "spec": {**spec, "engine": engine}}
    )
    kept = {key("g"): Recollection(grouped)}
    leader = replace(homeless("g0"), problem=None, group=0, start=Start(scheduled=START + timedelta(seconds=50)))
    waits, at_last = replace(homeless("g0-1"), group=0), Start(scheduled=START + timedelta(seconds=120))

    def placed(*workers: Pod) -> object:
        seen = Observed(DeploymentView(name="b"), (leader,), workers=workers, grouped=True)
        scale(key("g"), kept, seen, Status(), at(100))
        return kept[key("g")].claim.placed

    assert placed() is None, "the pod behind it is not made yet"
    assert placed(waits) is None
    assert placed(replace(waits, problem=None, start=at_last)) == at_last.scheduled


def test_a_fixed_service_has_priority_zero_and_no_decision() -> None:
    kept = {key("fixed"): Recollection(service("fixed")), key("low"): Recollection(service("low", priority=-1))}
    assert scale(key("fixed"), kept, busy(homeless("f")), Status(), at(100)) is None
    low = scale(key("low"), kept, busy(homeless("l")), Status(), at(100))
    assert low is not None and low.limited.reason is Reason.YIELDS_ROOM


def test_starts_are_learnt_in_passing_and_engines_asked_for_their_part() -> None:
    kept = {key("s"): Recollection(service("s"))}
    waiting = Observed(DeploymentView(name="b"), (Pod(name="p", uid="p", start=Start(START)),))
    over = Start(START, START + timedelta(seconds=1), START + timedelta(seconds=3), LATER)
    up = Pod(name="p", uid="p", ready=True, started=True, running=True, start=over)
    scale(key("s"), kept, waiting, Status(), at(50))
    scale(key("s"), kept, Observed(DeploymentView(name="b"), (up,)), Status(), at(101))
    assert kept[key("s")].starts.asks
    told = Latencies(None, None, None, None, weights_s=60.0)
    on = Evidence(pools={"p": "h200"})
    heard = Observed(DeploymentView(name="b"), (up,), latencies={"p": told}, evidence=on)
    scale(key("s"), kept, heard, Status(), at(103))
    assert kept[key("s")].starts.phases == (Phases(1, 2, 60, 37, "h200"),)
    assert not kept[key("s")].starts.asks


def test_after_a_restart_the_cold_start_of_the_status_is_used() -> None:
    kept = {
        key("s"): Recollection(service("s", metrics=[{"type": "InFlightRequests", "target": {"averageValue": "8"}}]))
    }
    phases = StartPhases(schedule_seconds=0, image_seconds=0, warm_up_seconds=60)
    known = Status(cold_start=ColdStart(starts=3, p50_seconds=60, p95_seconds=60, phases=phases))
    reasons = []
    for number in range(20):
        pods = tuple(Pod(name=str(n), uid=str(n), ready=True, started=True, running=True) for n in range(6))
        samples = {pod.uid: Sample(load(0, 1 + number // 3), at(4.0 * number).monotonic_s) for pod in pods}
        seen = Observed(DeploymentView(name="b", replicas=6), pods, samples)
        outcome = scale(key("s"), kept, seen, known, at(4.0 * number))
        assert outcome is not None
        kept[key("s")].memory = outcome.memory
        reasons.append(outcome.decision.reason)
    assert "Lookahead" in reasons


def test_samples_of_fixed_services_age_as_by_default() -> None:
    assert sample_max_age_s(service("s")) == 30
    assert sample_max_age_s(service("s", missingMetrics={"maxAgeSeconds": 7})) == 7


def test_what_was_only_recommended_is_no_number_to_start_from() -> None:
    kept = {key("s"): Recollection(service("s", mode="Recommend"))}
    advised = scale(key("s"), kept, busy(), Status(), at(100))
    assert advised is not None and (advised.desired, advised.acts) == (5, False)
    kept[key("s")].memory = advised.memory
    kept[key("s")].service = service("s", mode="Builtin")
    acted = scale(key("s"), kept, busy(), Status(), at(102))
    assert acted is not None and (acted.decision.before, acted.desired) == (1, 5)
    assert acted.event is not None and acted.event.reason is EventReason.SCALED_UP
