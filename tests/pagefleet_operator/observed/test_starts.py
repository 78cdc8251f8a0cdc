from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagefleet_operator.facts.observed import Pod
from pagefleet_operator.facts.starts import KEPT, POOLS_KEPT, Phases, Start, StartLog

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return after(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def start(schedule_s: float, image_s: float, engine_s: float) -> Start:
    """A pod that is ready after these."""
    scheduled, began = schedule_s, schedule_s + image_s
    return Start(BEGIN, after(scheduled), after(began), after(began + engine_s))


def body(restarts: int = 0) -> dict[str, Any]:
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(2)},
        {"type": "Ready", "status": "True", "lastTransitionTime": stamp(42)},
    ]
    engine = {"name": "engine", "restartCount": restarts, "state": {"running": {"startedAt": stamp(12)}}}
    return {
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": stamp(0)},
        "status": {"conditions": conditions, "containerStatuses": [engine]},
    }


def test_phases_follow_one_another_from_creation_to_ready() -> None:
    found = Pod.from_object(body()).start
    assert found == start(2, 10, 30)
    assert found.phases(12.0) == Phases(2, 10, 12, 18)
    assert found.phases(None) == Phases(2, 10, None, 30)
    assert [phases.total_s for phases in (Phases(2, 10, 12, 18), Phases(2, 10, None, 30))] == [42, 42]


def test_phases_have_names() -> None:
    assert Phases(2, 10, 12, 18).named == {"schedule": 2, "image": 10, "weights": 12, "warm_up": 18}
    assert Phases(2, 10, None, 30).named == {"schedule": 2, "image": 10, "warm_up": 30}


def test_a_start_that_took_several_tries_is_none() -> None:
    assert Pod.from_object(body(restarts=1)).start.phases(1.0) is None


@pytest.mark.parametrize("missing", ["created", "scheduled", "began", "ready"])
def test_a_start_that_is_not_over_has_no_phases(missing: str) -> None:
    assert start(1, 1, 1)._replace(**{missing: None}).phases(1.0) is None


def test_clocks_that_disagree_make_no_negative_phase() -> None:
    assert start(-1, -2, -3).phases(5.0) == Phases(0, 0, 0, 0)


def test_only_starts_that_were_seen_from_their_beginning_count() -> None:
    waiting, over = Start(BEGIN), start(2, 10, 30)
    log = StartLog().learn({"new": waiting, "old": over}, {}, after(40))
    assert (log.phases, log.awaited, log.asks) == ((), frozenset({"new"}), False)
    log = log.learn({"new": over, "old": over}, {"old": 9.0}, after(43))
    assert (log.phases, log.asks) == ((), True)
    log = log.learn({"new": over, "old": over}, {"new": 9.0, "old": 9.0}, after(45))
    assert (log.phases, log.awaited, log.asks) == ((Phases(2, 10, 9, 21),), frozenset(), False)
    assert log.fresh == log.phases
    assert log.learn({}, {}, after(47)).fresh == ()


def test_an_engine_that_never_tells_its_part_counts_after_a_while() -> None:
    log = StartLog(awaited=frozenset({"a"}))
    assert log.learn({"a": start(2, 10, 30)}, {}, after(72)).phases == ()
    assert log.learn({"a": start(2, 10, 30)}, {}, after(73)).phases == (Phases(2, 10, None, 30),)


def test_a_pod_that_goes_before_it_is_ready_is_forgotten() -> None:
    assert StartLog(awaited=frozenset({"a"})).learn({}, {}, BEGIN) == StartLog()


def test_quantiles_are_of_the_latest_starts() -> None:
    log = StartLog()
    for number in range(1, 31):
        log = StartLog(log.phases, frozenset({"a"})).learn({"a": start(0, 0, number)}, {"a": None}, after(99))
    assert len(log.phases) == KEPT
    assert (log.quantile(0.5), log.quantile(0.95), log.quantile(0)) == (20, 29, 11)
    assert log.medians() == Phases(0, 0, None, 20)


def test_without_any_start_nothing_is_known() -> None:
    assert (StartLog().quantile(0.5), StartLog().expected_s, StartLog().by_pool) == (None, None, {})


def in_pools(*pools: str | None) -> StartLog:
    """A start in each of these, one after the other; the n-th takes n seconds."""
    log = StartLog()
    for number, pool in enumerate(pools, start=1):
        known = {} if pool is None else {"a": pool}
        seen = StartLog(log.phases, frozenset({"a"}))
        log = seen.learn({"a": start(0, 0, number)}, {"a": None}, after(99), known)
    return log


def test_the_next_pod_is_expected_where_the_latest_landed() -> None:
    log = in_pools("slow", "slow", "slow", "fast")
    assert [*log.by_pool] == ["fast", "slow"]
    assert (log.expected_s, log.by_pool["slow"].quantile(0.5), log.quantile(0.5)) == (4, 2, 2)
    assert in_pools("slow", "slow", "slow", None).expected_s == 2


def test_a_busy_pool_does_not_push_out_what_is_known_of_others() -> None:
    log = in_pools("rare", *["busy"] * 3 * KEPT)
    assert {name: len(each.phases) for name, each in log.by_pool.items()} == {"busy": KEPT, "rare": 1}
    assert len(log.latest.phases) == KEPT


def test_pools_that_are_long_gone_are_forgotten() -> None:
    log = in_pools(*(f"pool-{number}" for number in range(3 * KEPT)))
    assert len(log.phases) == KEPT
    again = in_pools("first", *(name for number in range(POOLS_KEPT) for name in [f"pool-{number}"] * KEPT))
    assert [*again.by_pool] == [f"pool-{number}" for number in reversed(range(POOLS_KEPT))]
