"""Asking downloads how far they are: rarely, and with a pass only for news."""

import asyncio

from pagefleet_api.download import DownloadProgress
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.facts.observed import Pod
from pagefleet_operator.models.downloads import Downloads

ONE, TWO = ServiceKey("n", "one"), ServiceKey("n", "two")
POD = Pod(name="f", uid="f", ip="10.0.0.9", running=True)


class Bench:
    """Downloads, a clock, and what a pod would tell."""

    def __init__(self) -> None:
        self.now_s, self.asked = 1000.0, 0
        self.told: DownloadProgress | None = None
        self.again: list[tuple[str, float]] = []
        self.downloads = Downloads(
            self._ask, lambda key, delay_s: self.again.append((key.name, delay_s)), lambda: self.now_s
        )

    async def _ask(self, _: Pod) -> DownloadProgress | None:
        self.asked += 1
        return self.told

    async def look(self, key: ServiceKey = ONE, pod: Pod = POD) -> DownloadProgress | None:
        """What is known then; the passes that are asked for are in `again`."""
        self.again.clear()
        found = self.downloads.about(key, [pod])
        await asyncio.sleep(0)
        return found.get(pod.uid)


def so_far(size: int) -> DownloadProgress:
    return DownloadProgress(bytes=size, total_bytes=100)


async def test_what_is_new_brings_a_pass_at_once_and_the_next_look_half_a_minute_after_the_last() -> None:
    bench = Bench()
    bench.told = so_far(10)
    assert await bench.look() is None
    assert bench.again == [("one", 0)]
    bench.now_s += 3
    assert await bench.look() == so_far(10)
    assert bench.again == [("one", 27)]
    assert bench.asked == 1


async def test_what_does_not_move_brings_no_pass_before_the_next_look() -> None:
    bench = Bench()
    bench.told = so_far(10)
    await bench.look()
    bench.now_s += 30
    assert await bench.look() == so_far(10)
    assert (bench.again, bench.asked) == ([("one", 30)], 2)


async def test_a_missing_answer_leaves_what_was_told() -> None:
    bench = Bench()
    await bench.look()
    assert bench.again == [("one", 10)]
    bench.told = so_far(10)
    bench.now_s += 10
    await bench.look()
    bench.told = None
    bench.now_s += 30
    await bench.look()
    assert bench.again == [("one", 30)]
    assert await bench.look() == so_far(10)


async def test_services_that_share_a_download_hear_of_it_by_one_question() -> None:
    bench = Bench()
    bench.told = so_far(10)
    bench.downloads.about(ONE, [POD])
    bench.downloads.about(TWO, [POD])
    bench.again.clear()
    await asyncio.sleep(0)
    assert sorted(bench.again) == [("one", 0), ("two", 0)]
    assert bench.asked == 1


async def test_only_pods_that_run_are_asked() -> None:
    bench = Bench()
    for pod in (Pod(name="f", uid="f", ip="10.0.0.9"), Pod(name="f", uid="f", running=True)):
        assert await bench.look(pod=pod) is None
    assert (bench.again, bench.asked) == ([], 0)
