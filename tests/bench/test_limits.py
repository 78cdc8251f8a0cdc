"""The machine's limits are those of the table that the figures are compared with."""

import pytest

from bench.engine import workloads
from bench.engine.limits import Limits, limits_for, percent
from bench.engine.shapes import SHAPES

GPU = "NVIDIA H200"
BATCHES = (1, 8, 64, 256)


def limits(model: str) -> Limits:
    found = limits_for(SHAPES[model], GPU)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "step_ms"),
    [("llama-8b-shape", (3.57, 3.79, 5.57, 13.07)), ("qwen3-0.6b-shape", (0.31, 0.50, 2.05, 7.48))],
)
def test_decode_steps_at_context_1k(model: str, step_ms: tuple[float, ...]) -> None:
    found = tuple(round(limits(model).decode_step_s(batch, batch * 1024) * 1e3, 2) for batch in BATCHES)
    assert found == step_ms


@pytest.mark.parametrize(("model", "tok_s"), [("llama-8b-shape", 53_400), ("qwen3-0.6b-shape", 694_000)])
def test_prefill_of_32_prompts_of_2048(model: str, tok_s: float) -> None:
    assert 32 * 2048 / limits(model).prefill_s([2048] * 32) == pytest.approx(tok_s, rel=1e-3)


@pytest.mark.parametrize(("model", "tok_s"), [("llama-8b-shape", 13_080), ("qwen3-0.6b-shape", 35_700)])
def test_the_mixed_workload_with_prefill_and_decode_one_after_the_other(model: str, tok_s: float) -> None:
    batch = workloads.mixed(workloads.FULL, SHAPES[model]["vocab_size"])
    assert limits(model).batch_tok_s(batch.lengths, batch.outputs) == pytest.approx(tok_s, rel=1e-3)


def test_memory_holds_a_few_more_kv_tokens_than_the_peer_has() -> None:
    assert 891_392 < limits("llama-8b-shape").kv_tokens(0.9) < 920_000


def test_an_8b_model_has_16_gb_of_weights_and_a_tied_head_counts_once() -> None:
    assert limits("llama-8b-shape").shape.weight_bytes == pytest.approx(16.06e9, rel=1e-3)
    tied = limits("qwen3-0.6b-shape").shape
    assert tied.weight_bytes == 2 * tied.read_weights


def test_two_gpus_halve_the_time_of_a_step() -> None:
    two = limits_for(SHAPES["llama-70b-shape"], GPU, gpus=2)
    assert two is not None
    assert two.decode_step_s(1, 1024) * 1e3 == pytest.approx(16.4, rel=0.01)
    assert two.decode_step_s(64, 64 * 1024) * 1e3 == pytest.approx(18.9, rel=0.02)


def test_there_is_no_limit_for_a_model_or_a_machine_that_is_not_known() -> None:
    assert limits_for(None, GPU) is None
    assert limits_for(SHAPES["tiny-shape"], "NVIDIA Something") is None
    assert limits_for(SHAPES["tiny-shape"], None) is None


def test_percent_is_100_at_the_limit_in_either_direction() -> None:
    assert percent(50.0, 100.0, more_is_better=True) == 50.0
    assert percent(200.0, 100.0, more_is_better=False) == 50.0
    assert percent(7.0, 7.0, more_is_better=False) == 100.0
    assert percent(7.0, None, more_is_better=True) is None
    assert percent(0.0, 7.0, more_is_better=False) is None
