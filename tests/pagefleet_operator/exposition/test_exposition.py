import math

import pytest

from pagefleet_operator.engines.exposition import BrokenExposition, Histogram, parse

TEXT = """\
# HELP x:waiting Requests, "waiting"
# TYPE x:waiting gauge
x:waiting{engine="0",model_name="a b"} 2.0
x:waiting{engine="1",model_name="a b"} 3
x:odd{text="a \\"quoted\\" } and \\\\ more"} 1 1700000000000
# TYPE x:finished counter
x:finished{reason="stop"} 7
x:broken NaN
x:endless +Inf
x:plain -1.5
# TYPE x:ttft_seconds histogram
x:ttft_seconds_bucket{le="0.5",engine="0"} 1
x:ttft_seconds_bucket{le="1.0",engine="0"} 2
x:ttft_seconds_bucket{le="+Inf",engine="0"} 4
x:ttft_seconds_count{engine="0"} 4
x:ttft_seconds_sum{engine="0"} 9.5
x:ttft_seconds_bucket{le="0.5",engine="1"} 0
x:ttft_seconds_bucket{le="1.0",engine="1"} 1
x:ttft_seconds_bucket{le="+Inf",engine="1"} 1
x:ttft_seconds_count{engine="1"} 1
x:ttft_seconds_sum{engine="1"} 0.5
"""


@pytest.mark.parametrize(
    "text",
    ['x:a{b="' + "c" * 5000 + '"} 1', "".join(f'x:a{{b="{number}"}} 1\n' for number in range(40_000))],
    ids=["one long line", "a flood of series"],
)
def test_a_text_that_takes_long_to_read_is_refused_at_once(text: str) -> None:
    with pytest.raises(BrokenExposition, match="more than 262144 characters, or than 4096 in one line"):
        parse(text, ["x:"])


def test_numbers_that_nothing_counts_up_to_are_left_out() -> None:
    assert parse("x:a 1e308\nx:b -1e300\nx:c 9007199254740992").samples.keys() == {"x:c"}


def test_series_are_found_by_name_and_labels() -> None:
    found = parse(TEXT)
    assert found.total("x:waiting") == 5
    assert found.total("x:waiting", engine="1") == 3
    assert found.total("x:waiting", engine="2") is None
    assert found.total("x:plain") == -1.5
    assert found.series("x:odd")[0].labels == {"text": 'a "quoted" } and \\ more'}


def test_a_counter_keeps_the_name_that_it_has_on_the_wire() -> None:
    assert parse(TEXT).total("x:finished") == 7
    assert parse(TEXT).total("x:finished_total") is None


def test_what_is_not_finite_is_missing_and_not_zero() -> None:
    found = parse(TEXT)
    assert found.total("x:broken") is None
    assert found.total("x:endless") is None
    assert found.total("x:never_heard_of") is None


def test_a_histogram_is_the_sum_of_its_series() -> None:
    found = parse(TEXT)
    assert found.histogram("x:ttft_seconds") == Histogram((0.5, 1.0, math.inf), (1, 3, 5), 10.0)
    assert found.histogram("x:ttft_seconds", engine="1") == Histogram((0.5, 1.0, math.inf), (0, 1, 1), 0.5)
    assert found.histogram("x:waiting") is None


def test_a_histogram_without_its_last_bucket_ends_with_its_count() -> None:
    text = 'h_bucket{le="1"} 2\nh_bucket{le="?"} 9\nh_bucket 9\nh_count 3\nh_sum 4'
    assert parse(text).histogram("h") == Histogram((1.0, math.inf), (2, 3), 4.0)


def test_a_histogram_whose_counts_fall_is_missing() -> None:
    assert parse('h_bucket{le="1"} 5\nh_bucket{le="+Inf"} 3').histogram("h") is None


def test_only_the_names_asked_for_are_read() -> None:
    found = parse(TEXT + "this line ends { nowhere\n", names=("x:waiting", "x:ttft_seconds"))
    assert set(found.samples) == {"x:waiting"} | {f"x:ttft_seconds_{part}" for part in ("bucket", "count", "sum")}


@pytest.mark.parametrize(
    "text", ["<html>gone</html>", "x{a=b} 1", 'x{a="b" 1', "x", "x one", 'x{a="1",a="2"} 1', "{} 1"]
)
def test_a_text_that_is_no_exposition_is_an_error_of_its_own(text: str) -> None:
    with pytest.raises(BrokenExposition):
        parse(text)


def test_an_empty_text_has_nothing() -> None:
    assert not parse("\n# only a comment\n").samples
