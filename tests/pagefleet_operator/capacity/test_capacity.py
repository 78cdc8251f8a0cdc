from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api.sizing import gpu_types
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_api.status import Capacity, Condition, MeasuredCapacity
from pagefleet_operator.capacity import Judgement, judge
from pagefleet_operator.facts.knowledge import GpuNodes, Knowledge
from pagefleet_operator.facts.observed import Observed
from pagefleet_operator.supplies import of_judgement
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_operator.plan.build import load, observed, pod, sample
from tests.pagefleet_operator.status.build import condition, service, status, supplied

LLAMA = ModelFacts.read(configs.LLAMA_8B)
ON_A_GPU = {"engine": {"device": "cuda", "maxModelLen": 32_768}}


def knows(*names: str, facts: ModelFacts | None = LLAMA, **changes: Any) -> Knowledge:
    gpus = tuple(GpuNodes(gpu_types.named(name, gpu_types.known()), 2) for name in names)
    return Knowledge(facts=facts, gpus=gpus or None, **changes)


def judged(
    knowledge: Knowledge,
    seen: Observed | None = None,
    before: Capacity | None = None,
    *,
    made: bool = False,
    **spec: Any,
) -> Judgement:
    return judge(service(**{**ON_A_GPU, **spec}), replace(seen or Observed(), knowledge=knowledge), before, made=made)


@pytest.mark.parametrize(
    ("knowledge", "expected"),
    [
        (knows(facts=None, reading=True, unknown="is being read"), (None, "ReadingModel", "is being read")),
        (knows(facts=None, unknown="denied: no token"), (None, "ModelUnknown", "denied: no token")),
        (knows(), (None, "GPUTypeUnknown", "no node that has nvidia.com/gpu tells its type")),
        (knows("H200"), (True, "Estimated", "H200 (2 nodes): 883,264 tokens expected; of 125.8 GiB on H200: weights")),
        (knows("L4", "H200"), (True, "Estimated", "H200 (2 nodes): 883,264 tokens")),
        (knows("L4"), (False, "TooLarge", "L4 (2 nodes): one sequence of 32,768 tokens takes 4.0 GiB")),
    ],
)
def test_the_condition_says_what_is_expected_before_a_pod_runs(
    knowledge: Knowledge, expected: tuple[bool | None, str, str]
) -> None:
    verdict = judged(knowledge).verdict
    assert verdict is not None
    assert (verdict.status, verdict.reason.value) == expected[:2]
    assert verdict.message.startswith(expected[2])


SQL = {"name": "sql", "uri": "hf://org/sql"}
BY_VLLM: dict[str, Any] = {
    "model": {"uri": "hf://org/m", "adapters": [SQL]},
    "engine": {**ON_A_GPU["engine"], "runtime": "vllm", "image": "v"},
}


def test_adapters_take_of_what_keys_and_values_had() -> None:
    plain = judged(knows("H200"), **{**BY_VLLM, "model": {"uri": "hf://org/m"}}).capacity
    counted = judged(knows("H200", ranks={"sql": 8}), **BY_VLLM)
    assert plain is not None and plain.estimated is not None
    assert counted.capacity is not None and counted.capacity.estimated is not None
    assert counted.capacity.estimated.kv_tokens < plain.estimated.kv_tokens
    assert counted.capacity.estimated.weights_bytes == plain.estimated.weights_bytes
    assert counted.verdict is not None and "adapters 0.1 GiB" in counted.verdict.message


def test_a_draft_takes_its_part_before_a_pod_is_made() -> None:
    model = {"uri": "hf://org/m", "draft": {"uri": "hf://org/small"}}
    drafted: dict[str, Any] = {"model": model, "engine": {**BY_VLLM["engine"], "speculative": {"method": "draft"}}}
    plain, counted = (judged(knows("H200", draft=draft), **drafted) for draft in (None, LLAMA))
    assert plain.capacity is not None and plain.capacity.estimated is not None
    assert counted.capacity is not None and counted.capacity.estimated is not None
    assert counted.capacity.estimated.kv_tokens < plain.capacity.estimated.kv_tokens / 2, "two models of one size"
    assert counted.verdict is not None and "the draft's 15.0 GiB" in counted.verdict.message


def test_an_adapter_that_vllm_would_not_start_with_is_told_of_before_it_runs() -> None:
    found = judged(knows("H200", ranks={"sql": 64}), capacityPolicy="Enforce", **BY_VLLM)
    words = "adapter sql has rank 64, and vLLM is to set room aside for 16: set model.adapters[sql].rank to 64"
    assert found.verdict == (False, "TooLarge", words)
    assert found.holds_back
    others = {**BY_VLLM, "engine": {**BY_VLLM["engine"], "runtime": "sglang"}}
    assert judged(knows("H200", ranks={"sql": 64}), **others).verdict != found.verdict


def test_the_least_type_that_suffices_is_estimated_for() -> None:
    found = judged(knows("H200", "L40S", "L4")).capacity
    assert found is not None and found.estimated is not None
    assert (found.estimated.gpu, found.estimated.kv_bytes_per_token) == ("L40S", 131_072)
    assert found.estimated.weights_bytes == 16_060_522_496
    none = judged(knows("L4", "A10G")).capacity
    assert none is not None and none.estimated is not None
    assert none.estimated.gpu == "L4", "of those that do not suffice, the one with most room"


def test_what_pods_report_counts_more_and_gives_the_error() -> None:
    seen = observed(pod("a"), pod("b"), a=sample(), b=replace(sample(), load=replace_blocks(54_938)))
    found = judged(knows("H200"), seen, made=True)
    assert found.verdict is not None and found.capacity is not None
    assert (found.verdict.status, found.verdict.reason.value) == (True, "Measured")
    assert found.capacity.measured == MeasuredCapacity(kv_blocks=100, kv_tokens=1600), "of the pod that has least"
    alone = judged(knows("H200"), observed(pod("b"), b=seen.samples["b"]), made=True).capacity
    assert alone is not None
    assert alone.estimate_error_percent == "0.5"


def replace_blocks(blocks: int) -> Any:
    return load().model_copy(update={"blocks_total": blocks})


def test_what_was_measured_stays_until_the_spec_changes() -> None:
    before = Capacity(measured=MeasuredCapacity(kv_blocks=7, kv_tokens=112))
    kept = judged(knows(facts=None), Observed(), before, made=True).capacity
    assert kept == before
    assert judged(knows(facts=None), Observed(), before).capacity is None
    mixed = observed(pod("a"), rollout=True, a=sample())
    assert judged(knows(facts=None), mixed, made=True).capacity is None, "the pod may be of either template"


def test_on_a_cpu_the_memory_limit_decides() -> None:
    engine = {"device": "cpu", "kvCache": {"size": "1Gi"}}
    found = judged(knows(), engine=engine, resources={"limits": {"memory": "2Gi"}})
    assert found.verdict is not None
    assert found.verdict.message.startswith("cpu: weights 29.9 GiB")
    assert found.verdict.status is False


@pytest.mark.parametrize(
    ("policy", "knowledge", "made", "held"),
    [
        ("Enforce", knows("L4"), False, True),
        ("Enforce", knows("L4"), True, False),
        ("Enforce", knows("H200"), False, False),
        ("Enforce", knows(facts=None, reading=True), False, True),
        ("Enforce", knows(facts=None), False, False),
        ("Enforce", knows(), False, False),
        ("Warn", knows("L4"), False, False),
        ("Ignore", knows("L4"), False, False),
    ],
)
def test_only_enforce_holds_pods_back_and_only_while_the_answer_is_no_or_on_its_way(
    policy: str, knowledge: Knowledge, made: bool, held: bool
) -> None:
    assert judged(knowledge, made=made, capacityPolicy=policy).holds_back is held


def test_ignore_says_nothing_but_what_was_measured() -> None:
    found = judged(knows("L4"), observed(pod("a"), a=sample()), made=True, capacityPolicy="Ignore")
    assert found.verdict is None
    assert found.capacity == Capacity(measured=MeasuredCapacity(kv_blocks=100, kv_tokens=1600))


def conditions(knowledge: Knowledge) -> dict[str, Condition]:
    judgement = judged(knowledge, capacityPolicy="Enforce")
    found = supplied(Observed(), of_judgement(judgement), judgement=judgement)
    return {kind: one for kind in ("Ready", "Fits", "Stalled", "Reconciling") if (one := condition(found, kind))}


def test_a_model_that_is_held_back_is_stalled_and_says_why() -> None:
    found = conditions(knows("L4"))
    assert {kind: (one.status, one.reason) for kind, one in found.items()} == {
        "Ready": ("False", "TooLarge"), "Fits": ("False", "TooLarge"), "Stalled": ("True", "TooLarge"),
    }  # fmt: skip
    assert found["Ready"].message.startswith("no pod is made: L4 (2 nodes)")
    assert found["Stalled"].message.startswith("capacityPolicy is Enforce; L4")


def test_a_model_that_is_being_read_is_on_its_way() -> None:
    found = conditions(knows(facts=None, reading=True, unknown="config.json is being read"))
    assert {kind: (one.status, one.reason) for kind, one in found.items()} == {
        "Ready": ("False", "ReadingModel"), "Fits": ("Unknown", "ReadingModel"),
        "Reconciling": ("True", "ReadingModel"),
    }  # fmt: skip


def test_without_a_judgement_there_is_no_condition() -> None:
    assert condition(status(Observed(), 1), "Fits") is None
