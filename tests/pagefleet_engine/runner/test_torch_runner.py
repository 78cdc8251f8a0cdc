"""The runner's own duties: one sequence's trouble stays its own, and tokens do not depend on the batch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.decoder import Decoder
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner.torch_runner import TorchRunner
from pagefleet_engine.steps import Sampling, SequenceResult, SequenceStep, StepPlan, execute
from tests.pagefleet_engine.runner import references, step_driver
from tests.pagefleet_engine.tiny_model import write_tiny_model

pytestmark = pytest.mark.torch
ANSWER_TOKENS = 24


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=8)
    files = resolve(f"file://{folder}")
    return TorchRunner(references.decoder(files, read_config(files)), num_blocks=300)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = np.random.default_rng(2)
    return [random.integers(0, 260, size=size).tolist() for size in (1, 5, 16, 17, 40, 90, 33, 64)]


def samplings() -> list[Sampling]:
    return [
        Sampling(seed=1), Sampling(seed=2, temperature=0.7, top_p=0.9), Sampling(seed=3, top_k=20),
        Sampling(seed=4, temperature=0.0), Sampling(seed=5, temperature=1.3), Sampling(seed=1, top_k=5, top_p=0.5),
        Sampling(seed=7, logit_bias=((3, 5.0), (4, -100.0))), Sampling(seed=8, temperature=0.0, top_logprobs=2),
    ]  # fmt: skip


def answers(runner: TorchRunner, prompts: list[list[int]], way: str) -> list[list[int]]:
    batch = step_driver.sequences(prompts, runner.num_blocks, ANSWER_TOKENS, samplings(), shuffle_seed=len(way))
    if way == "alone":
        for sequence in batch:
            step_driver.run_batched(runner, [sequence], ANSWER_TOKENS)
    elif way == "batched":
        step_driver.run_batched(runner, batch, ANSWER_TOKENS)
    else:
        step_driver.run_interleaved(runner, batch, ANSWER_TOKENS, chunk=9)
    return [sequence.answer[:ANSWER_TOKENS] for sequence in batch]


def test_sampled_answers_do_not_depend_on_the_batch_or_the_chunks(
    runner: TorchRunner, prompts: list[list[int]]
) -> None:
    alone = answers(runner, prompts, "alone")
    assert answers(runner, prompts, "batched") == alone
    assert answers(runner, prompts, "interleaved") == alone


def test_an_answer_is_the_same_after_being_preempted_and_recomputed(
    runner: TorchRunner, prompts: list[list[int]]
) -> None:
    sampling = Sampling(seed=12, temperature=0.9)
    [straight] = step_driver.sequences([prompts[5]], runner.num_blocks, ANSWER_TOKENS, [sampling])
    step_driver.run_batched(runner, [straight], ANSWER_TOKENS)
    [stopped] = step_driver.sequences([prompts[5]], runner.num_blocks, ANSWER_TOKENS, [sampling], shuffle_seed=9)
    step_driver.run_batched(runner, [stopped], 10)
    stopped.computed, stopped.blocks = 0, tuple(reversed(stopped.blocks))
    step_driver.run_batched(runner, [stopped], ANSWER_TOKENS - 10)
    assert stopped.answer == straight.answer


def step(sequence_id: int, token_ids: tuple[int, ...], block: int, sampling: Sampling | None = None) -> SequenceStep:
    return SequenceStep(
        sequence_id=sequence_id,
        token_ids=token_ids,
        start=0,
        block_table=(block,),
        sample=True,
        sampling=sampling or Sampling(seed=sequence_id, temperature=0.0),
    )


def test_tokens_and_biases_outside_the_vocabulary_fail_their_sequence_alone(runner: TorchRunner) -> None:
    good = step(1, (5, 6, 7), 1)
    alone = execute(runner, StepPlan((good,)))[0]
    biased = Sampling(seed=0, logit_bias=((266, 1.0),))
    plan = StepPlan((step(2, (1, 266), 2), good, step(3, (-1,), 3), step(4, (1,), 4, biased)))
    results = execute(runner, plan)
    assert [result.sequence_id for result in results] == [2, 1, 3, 4]
    assert results[1] == alone
    assert [result.failure is None for result in results] == [False, True, False, False]
    assert "outside the vocabulary of 266" in (results[0].failure or "")
    assert "logit_bias" in (results[3].failure or "")
    assert all(result.failure for result in execute(runner, StepPlan((step(2, (999,), 2),))))


def test_numbers_that_are_not_finite_fail_their_sequence_alone_and_leave_nothing_behind(runner: TorchRunner) -> None:
    good, bad = step(1, (5, 6, 7), 1), step(2, (9, 10), 2)
    expected = execute(runner, StepPlan((good,)))[0]
    decoder = runner._decoder
    assert isinstance(decoder, Decoder)
    embedding = decoder._embedding
    kept = embedding[9].clone()
    with torch.inference_mode():
        embedding[9] = torch.nan
    try:
        one_each = [step(1, (5,), 1), step(2, (9,), 2)]
        for plan in (StepPlan((good, bad)), StepPlan((bad, good)), StepPlan(tuple(one_each))):
            results = {result.sequence_id: result for result in execute(runner, plan)}
            assert results[1].failure is None
            assert results[2].failure == "the model's numbers for this sequence are not finite"
            assert results[2].token_id is None
        inside_the_prompt = SequenceStep(
            sequence_id=3, token_ids=(9, 10), start=0, block_table=(4,), sample=False, sampling=Sampling(seed=0),
            next_prompt_token=1,
        )  # fmt: skip
        assert execute(runner, StepPlan((inside_the_prompt,)))[0].failure is not None
    finally:
        with torch.inference_mode():
            embedding[9] = kept
    for block in (2, 4):
        moved = execute(runner, StepPlan((step(1, (5, 6, 7), block),)))[0]
        assert moved.token_id == expected.token_id
    assert all(memory.isfinite().all() for memory in runner._decoder._memory)


def logprobs_of(results: list[SequenceResult]) -> tuple[list[int], list[float], list[int]]:
    entries = [entry for result in results for entry in result.prompt_logprobs]
    return [e.token_id for e in entries], [e.logprob for e in entries], [len(e.top) for e in entries]


def test_prompt_logprobs_are_those_of_the_whole_prompt_in_any_chunks(runner: TorchRunner) -> None:
    prompt = np.random.default_rng(4).integers(0, 260, size=150).tolist()
    logits = references.decoder_logits(runner._decoder, prompt, [150])
    runner._decoder.allocate(runner.num_blocks)
    expected = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
    for limit in (None, 64, 7, 1):
        [sequence] = step_driver.sequences([prompt], runner.num_blocks, 1)
        sequence.prompt_logprobs = 2
        while not sequence.answer:
            step_driver.advance(runner, [(sequence, limit)])
        ids, values, tops = logprobs_of(sequence.results)
        assert ids == prompt[1:]
        assert values == pytest.approx(expected, abs=1e-4)
        assert tops == [2] * 149


def test_no_prompt_logprobs_are_made_unless_asked_for(runner: TorchRunner) -> None:
    assert execute(runner, StepPlan((step(1, (5, 6, 7), 1),)))[0].prompt_logprobs == ()
