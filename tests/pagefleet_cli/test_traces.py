import io
import itertools
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pagefleet_cli.errors import InputWrong
from pagefleet_cli.simulation import Request, Trace
from pagefleet_cli.traces import Means, read_trace


def read(path: Path, text: str) -> Trace:
    """The trace in a file with this text; chance is always the median."""
    path.write_text(text)
    return read_trace(str(path), Means(100, 20), itertools.repeat(0.5).__next__)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_own_columns_in_any_order_and_beside_others(file: Path) -> None:
    text = "output_tokens, prompt_tokens,user,arrival_s\n5,10,a,2.5\n\n6,11,b,1\n0,0,c,3\n"
    assert read(file, text).requests == (Request(1.0, 11, 6), Request(2.5, 10, 5), Request(3.0, 1, 1))


def test_json_lines_with_the_same_keys(file: Path) -> None:
    first = '{"arrival_s": 0.5, "prompt_tokens": 7, "output_tokens": 8}'
    second = '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 2}'
    assert read(file, f"{first}\n\n{second}\n").requests == (Request(0.5, 7, 8), Request(1.0, 1, 2))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"),
        ("2023-11-16 18:15:46.680590+00:00", "2023-11-16 18:15:50.995169+00:00"),
    ],
)
def test_the_public_azure_layout(file: Path, first: str, second: str) -> None:
    found = read(file, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},4808,10\n{second},3180,8\n")
    assert found.began == datetime(2023, 11, 16, 18, 15, 46, 680590, tzinfo=UTC)
    assert [request[1:] for request in found.requests] == [(4808, 10), (3180, 8)]
    assert [request.arrival_s for request in found.requests] == pytest.approx([0, 4.314579], abs=1e-6)


def test_the_public_burstgpt_layout(file: Path) -> None:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    found = read(file, header + "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n")
    assert found.requests == (Request(0.0, 472, 18), Request(40.0, 1087, 1))


@pytest.mark.parametrize("indent", [None, 2])
def test_a_prometheus_range_becomes_arrivals_at_its_rate(file: Path, indent: int | None) -> None:
    one = {"metric": {"pod": "a"}, "values": [[1767225600, "1"], [1767225610, "NaN"], [1767225620, "0"]]}
    two = {"metric": {"pod": "b"}, "values": [[1767225600, "1"], [1767225610, "0"]]}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [one, two]}}
    found = read(file, json.dumps(answer, indent=indent))
    assert found.began == datetime(2026, 1, 1, tzinfo=UTC)
    assert len(found.requests) == 28, "two a second for ten seconds, ln 2 / 2 apart"
    assert found.requests[0].arrival_s == pytest.approx(0.3466, abs=1e-4)
    assert found.requests[0][1:] == (100, 20)


def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("arrival_s,prompt_tokens,output_tokens\n1,2,3\n"))
    assert read_trace("-", Means(), lambda: 0.5).requests == (Request(1.0, 2, 3),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "arrival_s,prompt_tokens,output_tokens\n1,2,3\n1,x,3\n",
            "line 3: prompt_tokens is 'x'; it takes a whole number",
        ),
        ("arrival_s,prompt_tokens,output_tokens\n-1,2,3\n", "line 2: arrival_s is '-1'; it takes seconds from 0 on"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,2,3\n", "line 2: arrival_s is 'nan'"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2\n", "line 2: output_tokens is absent"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n", "line 2: TIMESTAMP is 'noon'"),
        ("arrival_s,prompt_tokens,output_tokens\n", "there is no request in it"),
        ("when,what\n1,2\n", "line 1: 'when,what' has not the columns of any known trace"),
        ("", "line 1: '' has not the columns"),
        ('{"arrival_s": 1, "prompt_tokens": 1}\n', "line 1: output_tokens is absent"),
        ('{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1}\nx\n', "line 2: 'x' is no JSON object"),
        ("{\n", "neither JSONL nor the answer of Prometheus"),
        ('{"data": {"resultType": "matrix", "result": []}}', "data.result has 0 points"),
        ('{"data": {"resultType": "matrix", "result": [{"values": [[0, "0"], [9, "1"]]}]}}', "the rate is zero"),
    ],
)
def test_what_is_no_trace_is_refused_by_line_column_and_value(file: Path, text: str, words: str) -> None:
    with pytest.raises(InputWrong) as error:
        read(file, text)
    assert str(error.value).startswith(f"{file}: ")
    assert words in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputWrong, match="No such file"):
        read_trace(str(tmp_path / "none"), Means(), lambda: 0.5)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputWrong, match="this is no text"):
        read_trace(str(tmp_path / "binary"), Means(), lambda: 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('arrival_s,prompt_tokens,output_tokens\n"' + "1" * 200_000 + '",1,1\n', "this is no CSV: field larger"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1e9,1,1\n", "11574 days long; 400 are the most"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1," + "9" * 400, "output_tokens is '999"),
        ('{"arrival_s": 1, "prompt_tokens": Infinity, "output_tokens": 1}', "prompt_tokens is 'inf'"),
        ('{"arrival_s": ' + "9" * 400 + ', "prompt_tokens": 1, "output_tokens": 1}', "arrival_s is '999"),
        ('{"arrival_s": ' + "[" * 100_000 + "}", "this is neither JSONL nor the answer"),
    ],
)
def test_numbers_and_texts_beyond_all_measure_are_told_in_a_line(file: Path, text: str, words: str) -> None:
    with pytest.raises(InputWrong) as caught:
        read(file, text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[0, "1e12"], [60, "1"]], "more than 50000000 requests"),
        ([[0, "1"], [1e11, "1"]], "days long"),
        ([[math.nan, "1"], [60, "1"]], "neither JSONL nor the answer"),
        ([[-1e12, "1"], [60, "1"]], "neither JSONL nor the answer"),
    ],
)
def test_a_range_that_could_not_be_played_is_refused(file: Path, values: list[object], words: str) -> None:
    with pytest.raises(InputWrong, match=words):
        read(file, json.dumps({"data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}))
