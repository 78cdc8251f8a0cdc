"""Two GPUs give one GPU's greedy answers, CUDA graphs on. One pair a process: NCCL forms its group once."""

from pathlib import Path

import pytest
import torch

from pagefleet_api.launch import Launch
from pagefleet_engine.core_process import load_runner
from pagefleet_engine.steps import Runner, Sampling
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.tiny_model import TinyShape, write_tiny_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
SHAPE = TinyShape(layers=4, hidden_size=256, heads=8, kv_heads=4, head_size=64, intermediate_size=512)
PROMPTS = [[(7 * index + step) % 260 for step in range(length)] for index, length in enumerate((1, 17, 40, 90, 200))]
COUNT, NEAR_TIE = 12, 1e-3
"""In float32 answers may part only where the likeliest tokens are this close."""


def greedy(runner: Runner, *, interleaved: bool, top_logprobs: int | None) -> list[step_driver.DrivenSequence]:
    sampling = Sampling(seed=0, temperature=0.0, top_logprobs=top_logprobs)
    batch = step_driver.sequences(PROMPTS, runner.num_blocks, COUNT, [sampling] * len(PROMPTS))
    for sequence in batch:
        # ids must not come back while a runner knows them
        sequence.sequence_id += 100 * (1 + interleaved) + 1000 * (top_logprobs is not None)
    run = step_driver.run_interleaved if interleaved else step_driver.run_batched
    run(runner, batch, COUNT)
    return batch


def test_two_gpus_give_one_gpus_greedy_answers(tmp_path: Path) -> None:
    uri = f"file://{write_tiny_model(tmp_path / 'model', SHAPE)}"
    launch = Launch(
        model=uri, device="cuda", dtype="float32", max_model_len=512, max_num_seqs=8, max_num_batched_tokens=512,
        num_kv_blocks=256,
    )  # fmt: skip
    one = load_runner(launch).runner
    two = load_runner(Launch.parse([*launch.argv(), "--tensor-parallel-size", "2"])).runner
    for interleaved in (False, True):
        expected = greedy(one, interleaved=interleaved, top_logprobs=2)
        for top_logprobs in (2, None):
            found = greedy(two, interleaved=interleaved, top_logprobs=top_logprobs)
            for left, right in zip(expected, found, strict=True):
                _require_alike(left, right)


def _require_alike(expected: step_driver.DrivenSequence, found: step_driver.DrivenSequence) -> None:
    """The same tokens up to the first near tie."""
    sampled = [result for result in expected.results if result.token_id is not None]
    for place, result in enumerate(sampled[:COUNT]):
        assert result.logprobs is not None
        (_, best), (_, second) = result.logprobs.top[:2]
        if best - second < NEAR_TIE:
            return
        assert found.answer[place] == expected.answer[place], (place, best - second)
