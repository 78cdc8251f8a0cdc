"""Two operators that see the same service: which one acts."""

from typing import Any

import pytest

from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.claims import Claims
from pagefleet_operator.apiserver.cluster import Refused
from pagefleet_operator.ownership import Owner, Stance, selector, stance
from pagefleet_operator.settings import Settings

KEY = ServiceKey("n", "s")
OURS = Owner("system", "ours", "blue")
RIVAL = Owner("elsewhere", "theirs", "blue")


class Bench:
    """Claims of `OURS` over one Deployment, with other operators' Leases and a clock that stands."""

    def __init__(self, writer: Owner | None) -> None:
        self.now_s, self.lease, self.refused = 100.0, self.held("1"), False
        self.again: list[float] = []
        self.cache = WatchCache()
        self.write(writer)
        settings = Settings(lease_namespace=OURS.lease_namespace, lease_name=OURS.lease_name, shard=OURS.shard)
        self.claims = Claims(settings, self.cache, self, lambda _, delay_s: self.again.append(delay_s), self.clock_s)

    def clock_s(self) -> float:
        return self.now_s

    def write(self, writer: Owner | None) -> None:
        """The Deployment as that operator leaves it."""
        notes = writer.notes() if writer else {}
        meta = {"name": "s", "namespace": "n", "uid": "d", "annotations": notes}
        self.cache.put("Deployment", {"kind": "Deployment", "metadata": meta})

    @staticmethod
    def held(version: str, holder: str = "pod-1") -> dict[str, Any] | None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 10}
        return {"metadata": {"resourceVersion": version}, "spec": spec}

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        assert namespace == RIVAL.lease_namespace
        if self.refused:
            raise Refused("leases is forbidden")
        return self.lease

    @property
    def known_leases(self) -> int:
        return len(self.claims._seen)

    async def acts(self, after_s: float = 0.0) -> bool:
        self.now_s += after_s
        return await self.claims.may_act(KEY)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (None, Stance.ACT),
        (OURS, Stance.ACT),
        (OURS._replace(shard=None), Stance.ACT),
        (RIVAL, Stance.LEAVE),
        (RIVAL._replace(shard="green"), Stance.TAKE_OVER),
        (RIVAL._replace(shard=None), Stance.TAKE_OVER),
    ],
)
def test_a_service_is_left_to_another_operator_of_the_same_shard_alone(theirs: Owner | None, expected: Stance) -> None:
    assert stance(OURS, theirs) is expected


@pytest.mark.parametrize("owner", [OURS, RIVAL, OURS._replace(shard=None)])
def test_the_note_on_a_deployment_reads_back(owner: Owner) -> None:
    assert Owner.of({"metadata": {"annotations": owner.notes()}}) == owner
    assert Owner.of({"metadata": {"annotations": {"pagefleet.io/operator": "broken"}}}) is None


def test_services_without_a_shard_are_those_of_the_operator_without_one() -> None:
    assert (selector(None), selector("blue")) == ("!pagefleet.io/shard", "pagefleet.io/shard=blue")


async def test_a_new_service_and_an_own_one_are_acted_on_at_once() -> None:
    assert await Bench(None).acts()
    assert await Bench(OURS).acts()


async def test_another_operators_service_is_left_alone_while_its_lease_is_renewed() -> None:
    bench = Bench(RIVAL)
    for version in range(2, 8):
        assert not await bench.acts(after_s=9)
        bench.lease = bench.held(str(version))
    assert bench.again, "it looks again"
    assert not await bench.acts()
    assert not await bench.acts(after_s=9)
    assert await bench.acts(after_s=2), "nothing was renewed for ten seconds"


async def test_a_lease_that_is_free_or_gone_frees_the_service_at_once() -> None:
    for lease in (None, Bench.held("2", holder="")):
        bench = Bench(RIVAL)
        assert not await bench.acts()
        bench.lease = lease
        assert await bench.acts()


async def test_an_operator_whose_lease_may_not_be_read_counts_as_alive_until_its_note_is_gone() -> None:
    bench = Bench(RIVAL)
    bench.refused = True
    assert not await bench.acts()
    assert not await bench.acts(after_s=1000)
    bench.write(None)
    assert await bench.acts()


async def test_a_service_that_moved_here_is_taken_over_when_its_old_operator_must_have_noticed() -> None:
    bench = Bench(RIVAL._replace(shard="green"))
    assert not await bench.acts()
    assert bench.again == [5.0]
    assert not await bench.acts(after_s=4)
    assert await bench.acts(after_s=1)


async def test_leases_that_no_service_waits_for_are_forgotten() -> None:
    bench = Bench(RIVAL)
    for number in range(50):
        bench.write(RIVAL._replace(lease_name=f"rival-{number}"))
        assert not await bench.acts(after_s=1)
        assert bench.known_leases == 1
    bench.claims.forget(KEY)
    assert bench.known_leases == 0
    bench.lease = bench.held("9", holder="")
    assert await bench.acts(), "of one that was free at the first look nothing stays either"
    assert bench.known_leases == 0
