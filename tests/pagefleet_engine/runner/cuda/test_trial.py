"""The steps that memory is measured with are as large as any that the scheduler can plan, and no larger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.runner.cuda.trial import largest_steps


@given(batch_tokens=st.integers(1, 9000), seats=st.integers(1, 600), max_model_len=st.integers(1, 9000))
def test_nothing_that_a_request_can_ask_for_takes_more(batch_tokens: int, seats: int, max_model_len: int) -> None:
    plans = list(largest_steps(batch_tokens, seats, max_model_len))
    prompts, small, _ = plans
    longest = max(max_model_len - 1, 1)
    assert prompts.batch_tokens == min(batch_tokens, seats * longest)
    assert prompts.sequences[0].prompt_logprobs == 20 and prompts.sequences[0].tokens == min(batch_tokens, longest)
    assert len(small.sequences) == min(seats, batch_tokens)
    for step in small.sequences:
        asked = step.sampling
        assert step.sample and asked.top_logprobs == 20 and asked.penalises and asked.top_k and asked.top_p < 1
    for plan in plans:
        assert len(plan.sequences) <= seats
        assert plan.batch_tokens <= max(batch_tokens, 8)
        assert all(step.start == 0 and step.tokens <= max_model_len for step in plan.sequences)


@pytest.mark.parametrize(("batch_tokens", "seats"), [(8192, 256), (512, 512)])
def test_all_seats_sample_in_a_step_that_is_nearly_full(batch_tokens: int, seats: int) -> None:
    _, small, _ = largest_steps(batch_tokens, seats, 4096)
    assert small.batch_tokens > batch_tokens - seats
