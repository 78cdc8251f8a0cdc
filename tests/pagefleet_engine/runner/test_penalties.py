"""Tokens that came before, and tokens that may not come yet, change how the next one is chosen."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.runner.histories import Histories, Past
from pagefleet_engine.runner.sampler import Draw, choose
from pagefleet_engine.runner.torch_runner import TorchRunner
from pagefleet_engine.steps import History, Sampling, SequenceStep, StepPlan, execute
from tests.pagefleet_engine.runner import references
from tests.pagefleet_engine.runner.step_driver import DrivenSequence, advance, sequences
from tests.pagefleet_engine.tiny_model import write_tiny_model

pytestmark = pytest.mark.torch
VOCABULARY = 12
PENALISED = Sampling(seed=3, temperature=0.0, presence_penalty=0.5)


def logits_after(sampling: Sampling, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """What `choose` makes of fixed logits."""
    logits = torch.linspace(-2.0, 2.0, VOCABULARY)[None].clone()
    choose(logits, [Draw(sampling, len(prompt) + len(answer), Past([*prompt, *answer], len(prompt)))])
    return logits[0]


TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=20)


@pytest.fixture(scope="module")
def tiny_runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    files = resolve(f"file://{write_tiny_model(tmp_path_factory.mktemp('tiny'), seed=8)}")
    return TorchRunner(references.decoder(files, read_config(files)), num_blocks=100)


@given(TOKENS.filter(bool), TOKENS, st.sampled_from([0.5, 1.1, 1.9]))
def test_repetition_over_prompt_and_answer_is_that_of_transformers(
    prompt: list[int], answer: list[int], penalty: float
) -> None:
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([[*prompt, *answer]]), torch.linspace(-2.0, 2.0, VOCABULARY)[None].clone()
    )
    ours = logits_after(Sampling(seed=0, repetition_penalty=penalty), prompt, answer)
    torch.testing.assert_close(ours, theirs[0])


@given(TOKENS, TOKENS, st.floats(-2, 2), st.floats(-2, 2))
def test_frequency_counts_each_time_and_presence_once_and_both_the_answer_alone(
    prompt: list[int], answer: list[int], presence: float, frequency: float
) -> None:
    expected = torch.linspace(-2.0, 2.0, VOCABULARY)
    for token in set(answer):
        expected[token] -= presence + frequency * answer.count(token)
    ours = logits_after(Sampling(seed=0, presence_penalty=presence, frequency_penalty=frequency), prompt, answer)
    torch.testing.assert_close(ours, expected)


def test_barred_tokens_are_not_chosen_before_their_position_and_may_be_from_it_on() -> None:
    sampling = Sampling(seed=0, temperature=0.0, barred_token_ids=(VOCABULARY - 1,), barred_before=5)
    rows = torch.linspace(-2.0, 2.0, VOCABULARY).repeat(2, 1)
    early, late = choose(rows, [Draw(sampling, 4), Draw(sampling, 5)])
    assert (early.token_id, late.token_id) == (VOCABULARY - 2, VOCABULARY - 1)
    assert rows[0, -1] == -math.inf


def test_rows_without_a_past_are_not_touched_by_their_neighbours_penalties() -> None:
    plain = torch.linspace(-2.0, 2.0, VOCABULARY)
    rows = plain.repeat(3, 1)
    draws = [Draw(Sampling(seed=0), 9), Draw(PENALISED, 9, Past([11, 11], 0)), Draw(Sampling(seed=0), 9)]
    choose(rows, draws)
    assert rows[0].equal(plain)
    assert rows[2].equal(plain)
    assert not rows[1].equal(plain)


def step(sequence_id: int, token_ids: tuple[int, ...], start: int, history: History | None = None) -> SequenceStep:
    return SequenceStep(
        sequence_id=sequence_id, token_ids=token_ids, start=start, block_table=(0,), sample=True, sampling=PENALISED,
        history=history,
    )  # fmt: skip


def test_a_history_grows_with_each_decode_and_a_repeated_step_changes_nothing() -> None:
    histories = Histories()
    histories.follow([step(1, (5, 6), 0, History((5, 6), 2))])
    for _ in range(2):
        histories.follow([step(1, (7,), 2)])
    past = histories.past(step(1, (7,), 2))
    assert past is not None
    assert (past.token_ids, past.prompt_tokens) == ([5, 6, 7], 2)
    histories.follow([step(1, (7,), 2, History((5, 6, 9), 2))])
    assert past.token_ids != [5, 6, 9]
    again = histories.past(step(1, (7,), 2))
    assert again is not None
    assert again.token_ids == [5, 6, 9]


def test_those_who_have_left_are_forgotten_and_those_left_out_of_a_halved_plan_are_not() -> None:
    histories = Histories()
    for round_number in range(50):
        first = 4 * round_number
        plan = [step(first + index, (1,), 0, History((1,), 1)) for index in range(4)]
        histories.follow(plan)
        decodes = [step(first + index, (2,), 1) for index in range(4)]
        for part in (decodes, decodes[:2], decodes[:1], decodes[1:2], decodes[2:]):
            histories.follow(part)
        assert all(histories.past(each) is not None for each in decodes)
        assert histories.past(step(first - 1, (2,), 1)) is None


def penalised(batch: list[DrivenSequence]) -> list[DrivenSequence]:
    sampling = Sampling(seed=1, temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3)
    return [replace(sequence, sampling=sampling) for sequence in batch]


def test_the_runner_penalises_alike_in_a_batch_alone_and_after_a_preemption(tiny_runner: TorchRunner) -> None:
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]
    together = penalised(sequences(prompts, tiny_runner.num_blocks, 20))
    for _ in range(16):
        advance(tiny_runner, [(sequence, None) for sequence in together])
    for index, prompt in enumerate(prompts):
        [alone] = penalised(sequences([prompt], tiny_runner.num_blocks, 20))
        for count in range(16):
            if count == 7:
                alone.computed = 0
            advance(tiny_runner, [(alone, None)])
        assert alone.answer == together[index].answer


def test_a_decode_whose_earlier_tokens_are_not_known_fails_and_spares_the_others(tiny_runner: TorchRunner) -> None:
    [good] = penalised(sequences([[1, 2, 3]], tiny_runner.num_blocks, 4))
    results = execute(tiny_runner, StepPlan((good.step(), step(77, (3,), 2))))
    assert results[0].failure is None
    assert "not known" in (results[1].failure or "")
