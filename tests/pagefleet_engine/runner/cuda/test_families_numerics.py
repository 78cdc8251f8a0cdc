"""Every family on the GPU's decoder against transformers: prompt log-probabilities and greedy answers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.weights import open_weights
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.steps import Sampling
from tests.pagefleet_engine.runner import references, step_driver
from tests.pagefleet_engine.runner.cuda.test_runner import BLOCKS, gpu_runner
from tests.pagefleet_engine.runner.family_models import FAMILIES, write

pytestmark = pytest.mark.torch
PROMPTS = [[3 + (seed * 31 + index * 13) % 96 for index in range(length)] for seed, length in enumerate((20, 13))]
ANSWER_TOKENS = 3
TOLERANCE = {"cpu": 1e-3, "cuda": 5e-2}
"""On a GPU Triton multiplies float32 with fewer bits (TF32)."""


ON_HOST = {"gemma3", "smollm3, windows", "olmo2", "qwen3 moe, some dense layers"}
"""Tried without a GPU too: Triton's interpreter takes ten seconds for each."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in ON_HOST else pytest.mark.gpu) for name in FAMILIES],
    ids=str,
)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder and transformers' model of it."""
    folder: Path = tmp_path_factory.mktemp("family")
    return folder, write(FAMILIES[request.param], folder)


def opened(folder: Path, device: str) -> CudaRunner:
    """The GPU's runner for a folder."""
    files = resolve(f"file://{folder}")
    config = read_config(files)
    return gpu_runner((config, open_weights(files, config)), device)


@pytest.mark.timeout(600)
def test_prompts_in_chunks_and_answers_are_those_of_transformers(
    request: pytest.FixtureRequest, saved: tuple[Path, Any], device: str
) -> None:
    if device == "cpu" and request.node.get_closest_marker("gpu"):
        pytest.skip("left to a GPU")
    folder, reference = saved
    batch = step_driver.sequences(PROMPTS, BLOCKS, ANSWER_TOKENS, [Sampling(seed=0, temperature=0.0)] * len(PROMPTS))
    batch[0].prompt_logprobs = 0
    step_driver.run_interleaved(opened(folder, device), batch, ANSWER_TOKENS, chunk=14)
    exact = references.reference_logits(reference, PROMPTS[0]).log_softmax(-1)
    scored = [entry for result in batch[0].results for entry in result.prompt_logprobs]
    assert [entry.token_id for entry in scored] == PROMPTS[0][1:]
    for row, entry in enumerate(scored):
        assert entry.logprob == pytest.approx(exact[row, entry.token_id].item(), abs=TOLERANCE[device])
    for sequence, prompt in zip(batch, PROMPTS, strict=True):
        answer = sequence.answer[:ANSWER_TOKENS]
        logits = references.reference_logits(reference, [*prompt, *answer[:-1]], last=len(answer))
        short = logits.amax(-1) - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert math.isfinite(short.max().item()) and short.max().item() < 2 * TOLERANCE[device]
