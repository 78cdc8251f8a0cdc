"""The real small model against transformers on the same weights."""

import copy
from pathlib import Path

import pytest
import torch

from pagefleet_api.launch import Adapter
from pagefleet_engine.models.adapter_files import read_adapters
from pagefleet_engine.models.adapter_weights import AdapterWeights
from pagefleet_engine.models.adapters import join_adapters
from pagefleet_engine.models.paired import Placement
from pagefleet_engine.models.tensor_names import expected_shapes
from tests.pagefleet_engine.adapter_folders import write_adapter
from tests.pagefleet_engine.runner import references, step_driver

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
ANSWER_TOKENS = 64


@pytest.fixture(scope="module")
def text() -> list[int]:
    """About a hundred tokens of mixed text."""
    return [token for prompt in references.prompts()[7:13] for token in prompt][:111]


@pytest.fixture(scope="module")
def exact(text: list[int]) -> torch.Tensor:
    """The reference's logits of the text in float32."""
    return references.reference_logits(references.smollm2_reference(), text)


def test_logits_in_float32_equal_those_of_transformers_in_one_piece_and_in_chunks(
    text: list[int], exact: torch.Tensor
) -> None:
    runner = references.smollm2_runner()
    model = runner._decoder
    chunked = [50, 33, *[1] * (len(text) - 83)]
    for chunks in ([len(text)], chunked):
        difference = (references.decoder_logits(model, text, chunks) - exact).abs().max().item()
        assert difference <= references.MAX_LOGIT_DIFFERENCE
    model.allocate(runner.num_blocks)


def test_greedy_answers_of_a_batch_are_those_of_transformers() -> None:
    runner = references.smollm2_runner()
    batch = step_driver.sequences(references.prompts(), runner.num_blocks, ANSWER_TOKENS)
    step_driver.run_batched(runner, batch, ANSWER_TOKENS)
    for sequence, prompt in zip(batch, references.prompts(), strict=True):
        references.assert_greedy(references.smollm2_reference(), prompt, sequence.answer)


def test_greedy_answers_with_chunked_prompts_joining_running_ones_are_those_of_transformers() -> None:
    runner = references.smollm2_runner()
    batch = step_driver.sequences(references.prompts(), runner.num_blocks, ANSWER_TOKENS, shuffle_seed=1)
    step_driver.run_interleaved(runner, batch, ANSWER_TOKENS, chunk=19)
    for sequence, prompt in zip(batch, references.prompts(), strict=True):
        references.assert_greedy(references.smollm2_reference(), prompt, sequence.answer[:ANSWER_TOKENS])


@pytest.mark.parametrize("index", range(len(references.QUESTIONS)))
def test_greedy_answer_of_one_sequence_alone_is_that_of_transformers(index: int) -> None:
    runner, prompt = references.smollm2_runner(), references.prompts()[index]
    [alone] = step_driver.sequences([prompt], runner.num_blocks, ANSWER_TOKENS, shuffle_seed=index)
    step_driver.run_batched(runner, [alone], ANSWER_TOKENS)
    references.assert_greedy(references.smollm2_reference(), prompt, alone.answer)


def test_bfloat16_is_no_further_from_float32_than_transformers_in_bfloat16(
    text: list[int], exact: torch.Tensor
) -> None:
    in_bfloat16 = copy.deepcopy(references.smollm2_reference()).to(torch.bfloat16)
    theirs = references.reference_logits(in_bfloat16, text)
    model = references.decoder(*references.smollm2(), dtype=torch.bfloat16)
    clear = (exact.topk(2).values[:, 0] - exact.topk(2).values[:, 1]) > 2
    for chunks in ([len(text)], [50, 33, *[1] * (len(text) - 83)]):
        ours = references.decoder_logits(model, text, chunks)
        assert (ours - exact).abs().mean() <= 1.5 * (theirs - exact).abs().mean()
        assert torch.equal(ours.argmax(-1)[clear], exact.argmax(-1)[clear])


def test_an_adapter_of_a_gguf_model_adds_what_it_adds_to_transformers(
    text: list[int], exact: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has queries' and keys' rows in an order of its own."""
    config, runner = references.smollm2()[1], references.smollm2_runner()
    decoder, reference = runner._decoder, references.smollm2_reference()
    modules = ("q_proj", "k_proj", "v_proj", "o_proj")
    folder = write_adapter(tmp_path / "sql", expected_shapes(config), modules, rank=8, layers=[3], gain=2.0)
    [read] = read_adapters([Adapter("sql", str(folder))])
    source, place = AdapterWeights(read, config), Placement(config, torch.float32, torch.device("cpu"))
    joined = join_adapters([source], config, place.low_rank, place.device)
    monkeypatch.setattr(decoder, "_adapters", joined)  # the model is read once for all tests
    with torch.no_grad():
        for module in modules:
            part = f"model.layers.3.self_attn.{module}"
            pair, linear = source.pair(f"{part}.weight"), reference.get_submodule(part)
            assert pair is not None
            monkeypatch.setattr(linear, "weight", torch.nn.Parameter(linear.weight + read.scale * pair.up @ pair.down))
    short = text[:24]
    adapted = references.reference_logits(reference, short)
    assert (adapted - exact[: len(short)]).abs().max() > 1
    ours = references.decoder_logits(decoder, short, [len(short)], adapter=0)
    assert (ours - adapted).abs().max().item() <= references.MAX_LOGIT_DIFFERENCE
    decoder.allocate(runner.num_blocks)
