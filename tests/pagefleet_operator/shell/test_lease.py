"""Who leads: the pure decision, and the promise that two never act at the same time."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_operator.apiserver import lease
from pagefleet_operator.apiserver.lease import Leadership, Move, Seen, decide
from pagefleet_operator.settings import Settings, Timings

_WALL = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seen", "now_s", "move"),
    [
        (None, 0.0, Move.CREATE),
        (Seen("me", 10, 0.0), 99.0, Move.RENEW),
        (Seen("other", 10, 0.0), 9.9, Move.WAIT),
        (Seen("other", 10, 0.0), 10.0, Move.TAKE),
        (Seen("other", 15, 0.0), 12.0, Move.WAIT),
        (Seen("", 10, 0.0), 0.1, Move.TAKE),
        (Seen(None, 10, 0.0), 0.1, Move.TAKE),
    ],
    ids=["none", "mine", "fresh", "over", "their-duration", "released", "never-held"],
)
def test_a_replica_moves_by_what_it_saw_and_its_own_clock(seen: Seen | None, now_s: float, move: Move) -> None:
    assert decide(seen, "me", now_s) is move


def test_a_leader_stops_before_another_may_begin_even_with_a_write_on_its_way() -> None:
    timings = Timings()
    assert timings.lease_renew_deadline_s + timings.write_timeout_s < timings.lease_duration_s
    assert timings.lease_renew_s + timings.write_timeout_s < timings.lease_renew_deadline_s


def test_a_taken_lease_counts_a_transition_and_keeps_the_race_visible() -> None:
    settings = Settings(identity="me")
    live = {
        "metadata": {"resourceVersion": "7"},
        "spec": {"holderIdentity": "other", "leaseTransitions": 3, "acquireTime": "then"},
    }
    taken = lease.body(settings, live, _WALL, holder="me")
    assert taken["metadata"]["resourceVersion"] == "7"
    assert taken["spec"]["leaseTransitions"] == 4
    assert taken["spec"]["acquireTime"] == "2026-01-01T00:00:00.000000Z"


def test_a_renewed_lease_keeps_its_acquire_time_and_a_released_one_has_no_holder() -> None:
    settings = Settings(identity="me")
    live = {"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": "me", "acquireTime": "then"}}
    assert lease.body(settings, live, _WALL, holder="me")["spec"]["acquireTime"] == "then"
    assert lease.body(settings, live, _WALL, holder=None)["spec"]["holderIdentity"] == ""


class Down(Exception):
    """The store does not answer."""


class Store:
    """One Lease in memory, with resource versions."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.down = False
        self.version = 0

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        if self.down:
            raise Down
        return self.lease

    async def write_lease(self, new: dict[str, Any]) -> dict[str, Any]:
        if self.down:
            raise Down
        live_version = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if new["metadata"].get("resourceVersion") != live_version:
            raise Down
        self.version += 1
        self.lease = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        return self.lease


class Clock:
    """Monotonic time by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lease, "time", made)
    return made


def _replica(
    store: Store, name: str, told: list[tuple[str, bool]] | None = None, *, fit: Callable[[], bool] = lambda: True
) -> Leadership:
    settings = dataclasses.replace(Settings(), identity=name)
    notes = told if told is not None else []
    return Leadership(settings, store, lambda leads: notes.append((name, leads)), errors=(Down,), fit=fit)


async def test_the_first_replica_leads_and_the_second_waits(clock: Clock) -> None:
    store, told = Store(), list[tuple[str, bool]]()
    first, second = _replica(store, "a", told), _replica(store, "b", told)
    for _ in range(10):
        await first.step()
        await second.step()
        clock.now_s += 2
    assert (first.holds(), second.holds()) == (True, False)
    assert told == [("a", True)]


async def test_a_dead_leader_is_followed_after_its_duration_and_not_before(clock: Clock) -> None:
    store = Store()
    first, second = _replica(store, "a"), _replica(store, "b")
    await first.step()
    await second.step()
    clock.now_s += 9.9
    await second.step()
    assert not second.holds()
    clock.now_s += 0.2
    await second.step()
    assert second.holds()
    assert not first.holds()


async def test_a_leader_that_cannot_renew_stops_by_its_clock_and_leads_again_when_it_can(clock: Clock) -> None:
    store, told = Store(), list[tuple[str, bool]]()
    only = _replica(store, "a", told)
    await only.step()
    store.down = True
    for _ in range(3):
        clock.now_s += 1.9
        await only.step()
    assert only.holds()
    clock.now_s += 0.4
    assert not only.holds()
    await only.step()
    assert told == [("a", True), ("a", False)]
    store.down = False
    await only.step()
    assert only.holds()


async def test_a_lead_that_lapsed_between_two_renewals_is_told_as_lost_and_gained(clock: Clock) -> None:
    store, told = Store(), list[tuple[str, bool]]()
    only = _replica(store, "a", told)
    await only.step()
    clock.now_s += 7
    await only.step()
    assert only.holds()
    assert told == [("a", True), ("a", False), ("a", True)]


class Slow(Store):
    """Answers only after some time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.delay_s = clock, 0.0

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        self.clock.now_s += self.delay_s
        return await super().read_lease(namespace, name)


async def test_a_read_that_hangs_across_the_deadline_is_a_loss_that_is_told(clock: Clock) -> None:
    store, told = Slow(clock), list[tuple[str, bool]]()
    only = _replica(store, "a", told)
    await only.step()
    clock.now_s += 5
    store.delay_s = 2.9
    await only.step()
    assert only.holds()
    assert told == [("a", True), ("a", False), ("a", True)]


async def test_a_replica_that_cannot_do_the_work_leaves_the_lease_to_one_that_can(clock: Clock) -> None:
    store = Store()
    unfit, sound = _replica(store, "a", fit=lambda: False), _replica(store, "b")
    for _ in range(3):
        await unfit.step()
    assert store.lease is None
    await sound.step()
    assert (unfit.holds(), sound.holds()) == (False, True)
    await unfit.step()
    assert unfit.holder() == "b"


async def test_a_leader_that_can_work_no_more_stops_at_once_and_is_followed_when_its_time_is_over(
    clock: Clock,
) -> None:
    store, is_fit = Store(), [True]
    first, second = _replica(store, "a", fit=lambda: is_fit[0]), _replica(store, "b")
    await first.step()
    await second.step()
    is_fit[0] = False
    for _ in range(6):
        clock.now_s += 2
        await first.step()
        await second.step()
        assert not first.holds()
    assert second.holds()


async def test_a_release_lets_the_next_one_lead_at_once(clock: Clock) -> None:
    store = Store()
    first, second = _replica(store, "a"), _replica(store, "b")
    await first.step()
    await second.step()
    await first.release()
    assert not first.holds()
    clock.now_s += 0.1
    await second.step()
    assert second.holds()


async def test_an_end_that_took_longer_than_a_renewal_lasts_releases_all_the_same(clock: Clock) -> None:
    store = Store()
    first, second = _replica(store, "a"), _replica(store, "b")
    await first.step()
    await second.step()
    clock.now_s += Timings().lease_renew_deadline_s + 1
    assert not first.holds()
    await first.release()
    await second.step()
    assert second.holds()


async def test_what_another_one_has_taken_meanwhile_is_not_released(clock: Clock) -> None:
    store = Store()
    first, second = _replica(store, "a"), _replica(store, "b")
    await first.step()
    await second.step()
    clock.now_s += Timings().lease_duration_s + 1
    await second.step()
    await first.release()
    assert store.lease is not None
    assert store.lease["spec"]["holderIdentity"] == "b"
    assert second.holds()


class Behind(Store):
    """What a replica sees that reads before another one writes and writes after it."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store, self._read = store, store.lease

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self._read

    async def write_lease(self, new: dict[str, Any]) -> dict[str, Any]:
        return await self._store.write_lease(new)


async def test_of_two_that_take_at_the_same_time_one_loses(clock: Clock) -> None:
    store = Store()
    behind = Behind(store)
    first, second = _replica(store, "a"), _replica(behind, "b")
    await first.step()
    await second.step()
    assert (first.holds(), second.holds()) == (True, False)
