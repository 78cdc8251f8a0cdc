"""What a sequence may skip and how large it can become."""

import pytest
from msgspec import structs

from pagefleet_engine.kv.pool import BlockPool
from pagefleet_engine.kv.table import BlockTable
from pagefleet_engine.scheduler.sequence import Sequence
from pagefleet_engine.steps import History, Sampling
from pagefleet_engine.wire import Submit
from tests.pagefleet_engine.core.engine_rig import submit


def sequence(prompt_tokens: int, max_tokens: int, prompt_logprobs: int | None = None) -> Sequence:
    request = submit(1, range(prompt_tokens), max_tokens, prompt_logprobs=prompt_logprobs)
    return Sequence(request, BlockTable(BlockPool(8), ""))


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "blocks"), [(16, 0, 1), (16, 1, 1), (16, 2, 2), (15, 2, 1), (1, 48, 3)]
)
def test_the_last_token_of_an_answer_needs_no_place(prompt_tokens: int, max_tokens: int, blocks: int) -> None:
    assert sequence(prompt_tokens, max_tokens).final_blocks == blocks


@pytest.mark.parametrize(
    ("prompt_logprobs", "told", "readable"), [(None, 1, 47), (0, 1, 0), (0, 16, 15), (0, 17, 16), (0, 48, 47)]
)
def test_positions_whose_logprobs_are_untold_must_be_computed(
    prompt_logprobs: int | None, told: int, readable: int
) -> None:
    subject = sequence(48, 5, prompt_logprobs)
    subject.scored_prompt_tokens = told
    assert subject.readable_tokens == readable


def test_the_tokens_so_far_are_told_where_a_prefill_ends_and_only_if_the_sampling_penalises() -> None:
    request = submit(1, range(20), 5)
    penalised = Submit(**{**structs.asdict(request), "sampling": Sampling(seed=0, presence_penalty=0.5)})
    subject = Sequence(penalised, BlockTable(BlockPool(8), ""))
    assert subject.prefill_step(12).history is None
    assert subject.prefill_step(8).history == History(tuple(range(20)), 20)
    subject.append(3)
    subject.lose_seat()
    assert subject.prefill_step(21).history == History((*range(20), 3), 20)
    assert Sequence(request, BlockTable(BlockPool(8), "")).prefill_step(20).history is None
