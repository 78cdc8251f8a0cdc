"""With a fixed order of sums every number of a request is the same bits alone, beside others and in chunks."""

from pathlib import Path

import pytest
import torch

from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.weights import open_weights
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.steps import Sampling
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.runner.cuda.test_runner import BLOCKS, gpu_runner
from tests.pagefleet_engine.runner.family_models import FAMILIES, write

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
ON_HOST = {"qwen3 moe, some dense layers"}
"""Tried without a GPU too: it has layers of both kinds, and Triton's interpreter takes long."""
PROMPTS = [[3 + (seed * 31 + index * 13) % 96 for index in range(length)] for seed, length in enumerate((20, 13, 33))]
ANSWER_TOKENS = 3
SAMPLING = Sampling(seed=5, temperature=0.7, top_logprobs=2)


def numbers(runner: CudaRunner, prompts: list[list[int]], first_id: int, *, chunk: int | None) -> list[object]:
    """All that the first prompt's request is told, with the others beside it; None for whole prompts."""
    batch = step_driver.sequences(prompts, BLOCKS, ANSWER_TOKENS, [SAMPLING] * len(prompts))
    for sequence in batch:
        sequence.sequence_id += first_id
    batch[0].prompt_logprobs = 0
    if chunk is None:
        step_driver.run_batched(runner, batch, ANSWER_TOKENS)
    else:
        step_driver.run_interleaved(runner, batch, ANSWER_TOKENS, chunk)
    answered = [result.logprobs for result in batch[0].results if result.token_id is not None]
    scored = [entry for result in batch[0].results for entry in result.prompt_logprobs]
    return [*scored, *answered[:ANSWER_TOKENS]]


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in ON_HOST else pytest.mark.gpu) for name in FAMILIES]
)
def test_every_number_is_the_same_bits_in_any_batch(
    request: pytest.FixtureRequest, family: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu" and request.node.get_closest_marker("gpu"):
        pytest.skip("left to a GPU")
    write(FAMILIES[family], tmp_path)
    files = resolve(f"file://{tmp_path}")
    config = read_config(files)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    runner = gpu_runner((config, open_weights(files, config)), device, batch_invariant=True, dtype=dtype)
    for product in ("mm", "addmm", "matmul"):
        monkeypatch.setattr(torch, product, _library)
    monkeypatch.setattr(torch.nn.functional, "linear", _library)
    alone = numbers(runner, PROMPTS[:1], 0, chunk=None)
    assert numbers(runner, PROMPTS, 10, chunk=None) == alone
    assert numbers(runner, PROMPTS, 20, chunk=14) == alone


def _library(*_: object, **__: object) -> torch.Tensor:
    raise AssertionError("the library chooses the order of a product's sums by its rows")
