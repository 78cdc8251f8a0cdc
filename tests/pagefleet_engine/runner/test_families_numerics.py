"""Every family of decoders against transformers: a saved folder, read by us, gives the same logits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pagefleet_api.sizing import blocks_for
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.decoder import Decoder
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.weights import open_weights
from pagefleet_engine.runner.packing import pack
from pagefleet_engine.steps import Sampling, SequenceStep
from tests.pagefleet_engine.runner import references
from tests.pagefleet_engine.runner.family_models import FAMILIES, VOCABULARY, write

pytestmark = pytest.mark.torch
PROMPT_TOKENS = 90


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Any]:
    """Our decoder and transformers' model."""
    folder: Path = tmp_path_factory.mktemp("family")
    reference = write(FAMILIES[request.param], folder)
    files = resolve(f"file://{folder}")
    return references.decoder(files, read_config(files)), reference


@pytest.fixture
def shortest(request: pytest.FixtureRequest) -> int:
    """Tokens of the shortest text to try with this family."""
    return FAMILIES[request.node.callspec.params["pair"]].shortest


def text(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    drawn: list[int] = torch.randint(3, VOCABULARY, (tokens,), generator=generator).tolist()
    return drawn


@pytest.mark.parametrize("chunks", [[90], [70, 1, 1, 18], [5, 33, *[1] * 52]], ids=["whole", "chunks", "decodes"])
def test_logits_are_those_of_transformers(pair: tuple[Decoder, Any], chunks: list[int]) -> None:
    ours, reference = pair
    exact = references.reference_logits(reference, text(1))
    assert exact.std() > 0.1
    difference = (references.decoder_logits(ours, text(1), chunks) - exact).abs().max().item()
    assert difference <= references.MAX_LOGIT_DIFFERENCE


def test_sequences_of_different_lengths_decode_together(pair: tuple[Decoder, Any], shortest: int) -> None:
    ours, reference = pair
    texts = [text(seed, tokens) for seed, tokens in enumerate((shortest, 41, 90, 89, 64, 90))]
    width = blocks_for(PROMPT_TOKENS)
    ours.allocate(width * len(texts))
    ours.forward(pack([step(index, tokens[:-1], 0, width) for index, tokens in enumerate(texts)]))
    last = pack([step(index, tokens[-1:], len(tokens) - 1, width) for index, tokens in enumerate(texts)])
    logits = ours.logits(ours.forward(last))
    for row, index in enumerate(last.order):
        exact = references.reference_logits(reference, texts[index], last=1)[0]
        assert (logits[row] - exact).abs().max().item() <= references.MAX_LOGIT_DIFFERENCE


def step(index: int, tokens: list[int], start: int, width: int) -> SequenceStep:
    """One sequence's tokens from position `start`, in blocks of its own, latest first."""
    table = tuple(range(width * (index + 1) - 1, width * index - 1, -1))
    return SequenceStep(
        sequence_id=index, token_ids=tuple(tokens), start=start, block_table=table[: blocks_for(start + len(tokens))],
        sample=True, sampling=Sampling(seed=0),
    )  # fmt: skip


def test_longrope_takes_the_short_list_where_the_served_window_is_short(tmp_path: Path) -> None:
    reference = write(FAMILIES["phi4, partial longrope"], tmp_path)
    files = resolve(f"file://{tmp_path}")
    config = read_config(files)
    cpu = torch.device("cpu")
    ours = Decoder(config, open_weights(files, config), dtype=torch.float32, device=cpu, max_positions=12)
    exact = references.reference_logits(reference, text(1, 12))
    difference = (references.decoder_logits(ours, text(1, 12), [10, 1, 1]) - exact).abs().max().item()
    assert difference <= references.MAX_LOGIT_DIFFERENCE
