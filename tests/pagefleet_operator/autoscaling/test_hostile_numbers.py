"""Whatever an engine says, the number stays within its bounds or where it was; zero is a value and not absence."""

import math
from dataclasses import replace

import pytest
from pydantic import ValidationError

from pagefleet_api.load import EngineState, Load
from pagefleet_api.service import InferenceService
from pagefleet_operator.autoscaling import Fleet, Memory, PodLoad, Policy, decide
from pagefleet_operator.autoscaling.policy import DOWN
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, UNPLACED, at, calm, fleet, load, ready


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "-3", "1e20", "1e400", "9" * 400])
@pytest.mark.parametrize("field", ["running", "waiting", "blocksUsed", "queuedPromptTokens"])
def test_what_is_no_count_is_no_sample(field: str, text: str) -> None:
    with pytest.raises(ValidationError):
        Load.model_validate_json(f'{{"{field}": {text}}}')


@pytest.mark.parametrize("share", [math.nan, -0.5])
def test_a_share_that_cannot_be_is_no_sample(share: float) -> None:
    with pytest.raises(ValidationError):
        Load(kv_share=share)


@pytest.mark.parametrize(
    "said",
    [
        load(waiting=2**53),
        load(running=2**53),
        load(kv=1e6),
        load(queued_tokens=2**53),
        load().model_copy(update={"kv_share": math.inf, "blocks_used": None}),
        Load(),
        Load(state=EngineState.READY, running=0),
    ],
)
@pytest.mark.parametrize("policy", [DEFAULTS, replace(DEFAULTS, kv_demand_target=0.5, max_queued_requests=None)])
def test_absurd_numbers_give_a_number_within_the_bounds(said: Load, policy: Policy) -> None:
    pods = [PodLoad("absurd", True, True, said, 1.0), ready()]
    for before in (1, 2, 6):
        outcome = decide(policy, fleet(*pods, current=before), calm(before), at(0))
        assert policy.min_replicas <= outcome.desired <= policy.max_replicas


def test_no_pods_no_ready_pods_and_no_samples_hold_the_number() -> None:
    for pods in (fleet(current=3), fleet(UNPLACED, UNPLACED, current=3), Fleet(3)):
        assert decide(DEFAULTS, pods, calm(3), at(0)).desired == 3


def test_a_minimum_of_three_and_no_load_is_one_change_at_most() -> None:
    policy = replace(DEFAULTS, min_replicas=3)
    memory: Memory | None = None
    changes = 0
    for number in range(300):
        pods = fleet(*[ready()] * (3 if memory is None else memory.desired), current=1 if memory is None else None)
        outcome = decide(policy, pods, memory, at(2.0 * number))
        memory, changes = outcome.memory, changes + (outcome.decision.before != outcome.desired)
    assert (changes, outcome.desired) == (1, 3)


def test_a_load_that_swings_about_its_target_changes_nothing_for_an_hour() -> None:
    down = replace(DOWN, window_s=0)
    policy = replace(DEFAULTS, waiting_target=None, kv_target=None, in_flight_target=10, max_num_seqs=64, down=down)
    memory = calm(4)
    for number in range(900):
        share = (9, 11)[number % 2]
        outcome = decide(policy, fleet(*[ready(0, share)] * 4), memory, at(4.0 * number))
        memory = outcome.memory
        assert outcome.desired == 4


def test_zero_is_a_value() -> None:
    scaling = {
        "maxReplicas": 6,
        "priority": 0,
        "spareReplicas": 0,
        "lookahead": "0s",
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 0, "tolerance": "0"},
            "scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": 0},
        },
        "missingMetrics": {"minCoverage": "0"},
    }
    engine = {"maxQueuedRequests": 0}
    body = {"metadata": {"namespace": "a", "name": "b", "uid": "u"}}
    spec = {"model": {"uri": "pkg://m"}, "engine": engine, "autoscaling": scaling, "replicas": 0}
    service = InferenceService.parse({**body, "spec": spec})
    policy = Policy.of(service)
    assert policy is not None and service.spec.replicas == 0
    assert (policy.down.window_s, policy.up.tolerance, policy.down.tolerance) == (0, 0, 0)
    assert (policy.min_coverage, policy.lookahead_s, policy.max_queued_requests) == (0, 0, 0)
