"""Which requests are refused, and that the sentence has the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.scheduler.admission import Capacity, answer_room, refusal, window
from tests.pagefleet_engine.core.engine_rig import Rig, submit


@pytest.mark.parametrize(
    ("max_model_len", "num_blocks", "tokens"), [(2048, 1000, 2048), (4096, 64, 1024), (1024, 64, 1024)]
)
def test_the_window_is_the_smaller_of_model_and_pool(max_model_len: int, num_blocks: int, tokens: int) -> None:
    assert window(max_model_len, num_blocks) == tokens
    assert Capacity(max_model_len, num_blocks, 100).window_tokens == tokens


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "num_blocks", "reason", "param", "numbers"),
    [
        (0, None, 200, "prompt_empty", "prompt", []),
        (2048, None, 200, "prompt_too_long", "prompt", ["2048"]),
        (2048, 1, 200, "prompt_too_long", "prompt", ["2048"]),
        (2049, 0, 200, "prompt_too_long", "prompt", ["2049", "2048"]),
        (1500, 8, 64, "prompt_too_long", "prompt", ["1500", "1024", "64 blocks", "2048"]),
        (6, 2045, 200, "max_tokens_too_large", "max_tokens", ["6", "2045", "2051", "2048", "2042"]),
        (1000, 100, 64, "max_tokens_too_large", "max_tokens", ["1100", "1024", "64 blocks"]),
    ],
)
def test_a_request_that_cannot_fit_is_refused_with_the_numbers(
    prompt: int, max_tokens: int | None, num_blocks: int, reason: str, param: str, numbers: list[str]
) -> None:
    refused = refusal(prompt, max_tokens, 2048, num_blocks)
    assert refused is not None
    assert (refused.reason, refused.param) == (reason, param)
    assert all(number in refused.message for number in numbers)


def test_an_answer_that_is_too_long_is_told_by_the_name_that_the_client_gave_its_limit() -> None:
    refused = refusal(6, 2045, 2048, 200, max_tokens_field="max_completion_tokens")
    assert refused is not None
    assert refused.param == "max_completion_tokens"
    assert "max_completion_tokens is 2045" in refused.message


@pytest.mark.parametrize(("prompt", "max_tokens"), [(1, None), (2040, None), (2040, 8), (2047, 1), (2048, 0)])
def test_a_request_that_just_fits_is_accepted(prompt: int, max_tokens: int | None) -> None:
    assert refusal(prompt, max_tokens, 2048, 200) is None


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 20))
def test_an_accepted_prompt_always_has_room_for_the_answer_it_is_given(
    prompt: int, max_model_len: int, num_blocks: int
) -> None:
    room = answer_room(prompt, window(max_model_len, num_blocks))
    if refusal(prompt, None, max_model_len, num_blocks) is None:
        assert room >= 1
        assert refusal(prompt, room, max_model_len, num_blocks) is None
        assert refusal(prompt, room + 1, max_model_len, num_blocks) is not None
    else:
        assert room == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "words"),
    [
        ((), 5, "empty"),
        (range(900), 500, "max_tokens is 500"),
        ((1, 997), 5, "0 .. 996"),
        ((-1, 1), 5, "0 .. 996"),
    ],
)
def test_the_core_answers_an_impossible_request_at_once_and_goes_on(
    prompt: range | tuple[int, ...], max_tokens: int, words: str
) -> None:
    rig = Rig(num_blocks=64, max_model_len=4096)
    rig.submit(submit(1, prompt, max_tokens), submit(2, range(5), 3))
    rig.read_events()
    assert rig.ends[1].finish_reason == "error"
    assert words in str(rig.ends[1].error)
    rig.run()
    assert rig.ends[2].finish_reason == "length"


def test_a_prompt_larger_than_the_pool_does_not_block_the_next_one() -> None:
    rig = Rig(num_blocks=64, max_model_len=4096, max_num_batched_tokens=512)
    rig.submit(submit(1, [5] * 1500, 10), submit(2, range(5), 3))
    rig.run(max_steps=10)
    assert "1500" in str(rig.ends[1].error)
    assert len(rig.tokens[2]) == 3


def test_a_negative_limit_which_would_never_be_reached_is_refused() -> None:
    rig = Rig()
    rig.submit(submit(1, [1, 2], -1))
    rig.run()
    assert rig.ends[1].error == "max_tokens is -1; it must not be negative."
