"""What the benchmark of scale-downs counts, and what it asks for."""

import json

import pytest

from bench.scale_downs.rounds import Drains
from bench.scale_downs.rows import Round, counted, failed, missing, read, summary
from bench.scale_downs.subjects import SWINGS, Engines, ask, resource, service
from e2e.answers import Answer, Fault
from pagefleet_api.service import InferenceService

ROUNDS = [
    Round("paced", "paced-0", 7, 0, [0, 2, 3], 90, 0, 1, 900, 40.0, []),
    Round("real", "real-0", 5, 0, [1], 30, 0, 0, 300, 90.0, []),
]


def answer(fault: Fault | None = None) -> Answer:
    return Answer(
        number=0, asked_tokens=8, started_s=0, ended_s=4, completion_tokens=8, retries=1, fault=fault, detail="why"
    )


def test_an_answer_that_is_not_whole_is_cut_and_told() -> None:
    assert counted([answer(), answer(Fault.RESET)]) == {
        "requests": 2,
        "cut": 1,
        "retries": 2,
        "tokens": 16,
        "faults": ["reset: why"],
    }


def test_rounds_of_a_run_that_was_cut_off_count_in_the_next() -> None:
    rows = [{**each._asdict(), "date": "2026-11-30T05:00:00Z"} for each in ROUNDS]
    text = "\n".join(json.dumps(row) for row in [*rows, {**summary(ROUNDS), "commit": "abc"}])
    again = read(text)
    assert again == ROUNDS
    assert (missing(again, Engines.PACED, 10), missing(again, Engines.REAL, 5)) == (3, 0)


def test_rows_from_before_the_commit_was_in_them_can_be_read() -> None:
    row = {name: value for name, value in ROUNDS[0]._asdict().items() if name != "commit"}
    assert read(json.dumps(row)) == [ROUNDS[0]]
    assert summary([*ROUNDS, ROUNDS[0]._replace(commit="abc")])["commits"] == ["abc", "unknown"]


def test_the_row_says_how_many_pods_had_streams_when_they_left() -> None:
    row = summary(ROUNDS)
    assert (row["scale_downs"], row["by_engines"]) == (12, {"paced": 7, "real": 5})
    assert (row["drains_seen"], row["drains_with_streams"], row["streams_on_draining_pods"]) == (4, 3, 6)


@pytest.mark.parametrize(("lost", "fails"), [({}, False), ({"aborted": 1}, True), ({"cut": 1}, True)])
def test_one_lost_answer_fails_the_run(lost: dict[str, int], fails: bool) -> None:
    assert failed(summary([ROUNDS[0]._replace(**lost)])) is fails  # type: ignore[arg-type]


@pytest.mark.parametrize("engines", Engines)
def test_the_load_asks_for_all_pods_and_the_held_streams_for_few(engines: Engines) -> None:
    swing = SWINGS[engines]
    up, held = swing.base + swing.pressing, swing.base + swing.held
    assert -(-up // swing.in_flight_per_pod) > swing.pods, "so that one between two requests is not missed"
    assert -(-held // swing.in_flight_per_pod) <= swing.pods / 2
    assert swing.base <= 0.9 * swing.in_flight_per_pod


@pytest.mark.parametrize("engines", Engines)
def test_the_operator_takes_the_service(engines: Engines) -> None:
    spec = resource(service(engines, "x"))["spec"]
    parsed = InferenceService.parse({"metadata": {"name": "x", "namespace": "n", "uid": "u"}, "spec": spec})
    assert parsed.spec.decides


def test_no_two_requests_are_alike() -> None:
    asked = [ask(8, salt)(number) for salt in ("0 base", "1 base") for number in range(3)]
    assert len({each.prompt for each in asked}) == len(asked)


def test_an_operator_that_began_to_count_anew_counts_at_least_what_it_says() -> None:
    assert Drains(9, 1).since(Drains(2, 1)) == (7, 0)
    assert Drains(3, 0).since(Drains(56, 2)) == (3, 0)
