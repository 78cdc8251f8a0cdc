"""A Llama 3-style folder (rope scaling, grouped queries, untied head) against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner.torch_runner import TorchRunner
from tests.pagefleet_engine.runner import references, step_driver
from tests.pagefleet_engine.tiny_model import TinyShape, write_tiny_model

pytestmark = pytest.mark.torch
ANSWER_TOKENS = 64
SHAPES = {
    "llama 3": TinyShape(),
    "tied, unscaled": TinyShape(tied_head=True, rope_scaling=False),
    "one head each": TinyShape(kv_heads=4, layers=3),
    "one KV head, wide heads": TinyShape(kv_heads=1, head_size=32),
}


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TorchRunner, Any]:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), SHAPES[request.param], seed=3)
    files = resolve(f"file://{folder}")
    runner = TorchRunner(references.decoder(files, read_config(files)), num_blocks=400)
    return runner, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Twenty random prompts of 1 to 200 tokens."""
    random = np.random.default_rng(5)
    return [random.integers(0, 260, size=1 + 10 * index).tolist() for index in range(20)]


def test_logits_equal_those_of_transformers(model: tuple[TorchRunner, Any]) -> None:
    runner, reference = model
    text = np.random.default_rng(1).integers(0, 260, size=300).tolist()
    expected = references.reference_logits(reference, text)
    for chunks in ([300], [129, 1, 1, 64, 17, 88], [100, 200]):
        got = references.decoder_logits(runner._decoder, text, chunks)
        assert (got - expected).abs().max().item() <= references.MAX_LOGIT_DIFFERENCE
    runner._decoder.allocate(runner.num_blocks)


@pytest.mark.parametrize("way", ["alone", "batched", "interleaved"])
def test_greedy_answers_are_those_of_transformers(
    model: tuple[TorchRunner, Any], prompts: list[list[int]], way: str
) -> None:
    runner, reference = model
    batch = step_driver.sequences(prompts, runner.num_blocks, ANSWER_TOKENS)
    if way == "alone":
        for sequence in batch:
            step_driver.run_batched(runner, [sequence], ANSWER_TOKENS)
    elif way == "batched":
        step_driver.run_batched(runner, batch, ANSWER_TOKENS)
    else:
        step_driver.run_interleaved(runner, batch, ANSWER_TOKENS, chunk=33)
    for sequence, prompt in zip(batch, prompts, strict=True):
        references.assert_greedy(reference, prompt, sequence.answer[:ANSWER_TOKENS])
