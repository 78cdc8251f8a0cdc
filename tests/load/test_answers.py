"""The judgement of streamed answers, case by case."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.answers import Answer, Ask, BrokenStream, Fault, StreamedAnswer, percentile, summary


def chunk(text: str | None = None, finish: str | None = None, usage: int | None = None) -> bytes:
    body: dict[str, Any] = {
        "id": "chat-7",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
    }
    if usage is not None:
        body = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": usage}}
    return b"data: " + json.dumps(body).encode() + b"\n"


DONE = b"data: [DONE]\n"
TWO = [chunk("a"), b"\n", chunk("b"), chunk(finish="length")]


def stream(lines: list[bytes], ask: Ask) -> StreamedAnswer:
    answer = StreamedAnswer(ask)
    for second, line in enumerate(lines):
        answer.line(line, float(second))
    answer.check_end()
    return answer


def test_a_whole_stream_with_usage_counts_by_usage() -> None:
    answer = stream([*TWO, chunk(usage=2), DONE], Ask("x", 2))
    assert (answer.completion_tokens(), answer.finish_reason, answer.token_times_s) == (2, "length", [0.0, 2.0])


def test_without_usage_the_chunks_count_and_may_hold_several_tokens_each() -> None:
    assert stream([*TWO, DONE], Ask("x", 3)).completion_tokens() == 2


def test_comments_between_events_are_no_data() -> None:
    assert stream([b": ping\n", *TWO, DONE], Ask("x", 2)).done


@pytest.mark.parametrize(
    ("lines", "ask", "fault"),
    [
        pytest.param(TWO, Ask("x", 2), Fault.NOT_DONE, id="no done line"),
        pytest.param([*TWO, chunk(usage=2), DONE], Ask("x", 3), Fault.WRONG_COUNT, id="too few tokens"),
        pytest.param([*TWO, chunk(usage=3), DONE], Ask("x", 2), Fault.WRONG_COUNT, id="too many tokens"),
        pytest.param([*TWO, DONE], Ask("x", 1), Fault.WRONG_COUNT, id="more chunks than tokens"),
        pytest.param([chunk("a", "stop"), chunk(usage=1), DONE], Ask("x", 1), Fault.WRONG_COUNT, id="wrong reason"),
        pytest.param([b'data: {"error": {"message": "gone"}}\n'], Ask("x", 2), Fault.ERROR_EVENT, id="error event"),
        pytest.param([b"data: {\n"], Ask("x", 2), Fault.MALFORMED, id="half a chunk"),
        pytest.param([b"data: 7\n"], Ask("x", 2), Fault.MALFORMED, id="no object"),
        pytest.param([b"hello\n"], Ask("x", 2), Fault.MALFORMED, id="no event"),
        pytest.param([*TWO, DONE, chunk("c")], Ask("x", 2), Fault.MALFORMED, id="data after the end"),
        pytest.param([*TWO, chunk("c")], Ask("x", 2), Fault.MALFORMED, id="text after the finish reason"),
        pytest.param([chunk("a"), DONE], Ask("x", 2), Fault.MALFORMED, id="no finish reason"),
    ],
)
def test_a_broken_stream_is_named(lines: list[bytes], ask: Ask, fault: Fault) -> None:
    with pytest.raises(BrokenStream) as broken:
        stream(lines, ask)
    assert broken.value.fault is fault


def test_an_answer_whose_length_is_open_may_stop_early() -> None:
    assert stream([chunk("a", "stop"), chunk(usage=1), DONE], Ask("x", 9, exact=False)).finish_reason == "stop"


@given(st.lists(st.floats(0, 1000), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values(values: list[float], share: float) -> None:
    assert percentile(values, share) in values


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 0.5) is None


def test_a_summary_counts_requests_tokens_and_faults() -> None:
    good = Answer(0, 2, 1.0, 3.0, 200, None, 7, 2, 2, "length", (1.5, 2.0))
    cut = Answer(1, 2, 1.0, 2.0, 200, None, None, 1, 1, None, (1.25,), retries=2, fault=Fault.RESET)
    result = summary([good, cut])
    assert (result.requests, result.answered, result.retries, result.completion_tokens) == (2, 1, 2, 3)
    assert (result.faults, result.finish_reasons, result.statuses) == ({"reset": 1}, {"length": 1}, {"200": 2})
    assert (result.ttft_p50_s, result.itl_p50_s, result.seconds) == (0.5, 0.5, 2.0)
    assert json.loads(result.json())["faults"] == {"reset": 1}


def test_the_summary_of_nothing_has_no_latencies() -> None:
    assert "0 of 0" in str(summary([])) and summary([]).ttft_p50_s is None
