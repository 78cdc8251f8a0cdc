"""The work queue: each key once, never twice at a time, later after failures."""

import asyncio

from pagefleet_operator.workqueue import WorkQueue


def _queue(cap_s: float = 60.0) -> WorkQueue[str]:
    return WorkQueue(first_s=0.5, cap_s=cap_s)


async def _due(queue: WorkQueue[str], within_s: float = 0.2) -> str | None:
    try:
        return await asyncio.wait_for(queue.get(), within_s)
    except TimeoutError:
        return None


async def test_a_key_that_is_added_twice_comes_once() -> None:
    queue = _queue()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    assert await _due(queue) == "a"
    queue.done("a")
    assert await _due(queue, 0.02) is None


async def test_a_key_that_is_added_during_its_pass_comes_after_it_and_not_before() -> None:
    queue = _queue()
    queue.add("a")
    assert await _due(queue) == "a"
    queue.add("a")
    assert await _due(queue, 0.02) is None
    queue.done("a")
    assert await _due(queue) == "a"


async def test_different_keys_do_not_wait_for_each_other() -> None:
    queue = _queue()
    queue.add("a")
    queue.add("b")
    assert (await _due(queue), await _due(queue)) == ("a", "b")


async def test_failures_wait_twice_as_long_each_time_up_to_the_cap_and_success_forgets_them() -> None:
    queue = _queue(cap_s=3.0)
    assert [queue.failed("a") for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    queue.succeeded("a")
    assert queue.failed("a") == 0.5
    assert queue.failed("b") == 0.5


async def test_small_news_wait_with_a_key_that_failed_and_real_news_do_not() -> None:
    queue = _queue()
    queue.failed("a")
    queue.nudge("a")
    assert await _due(queue, 0.02) is None
    queue.add("a")
    assert await _due(queue) == "a"
    queue.nudge("b")
    assert await _due(queue) == "b"


async def test_news_during_a_pass_that_fails_wait_out_its_delay() -> None:
    queue = _queue()
    queue.add("a")
    assert await _due(queue) == "a"
    queue.nudge("a")
    queue.failed("a")
    queue.done("a")
    assert await _due(queue, 0.1) is None
    assert await _due(queue, 1.0) == "a"


async def test_news_during_a_pass_that_works_bring_the_next_at_once() -> None:
    queue = _queue()
    queue.failed("a")
    queue.add("a")
    assert await _due(queue) == "a"
    queue.nudge("a")
    queue.succeeded("a")
    queue.done("a")
    assert await _due(queue) == "a"


async def test_what_is_added_during_a_pass_that_fails_comes_at_once() -> None:
    queue = _queue()
    queue.add("a")
    assert await _due(queue) == "a"
    queue.nudge("a")
    queue.add("a")
    queue.nudge("a")
    queue.failed("a")
    queue.done("a")
    assert await _due(queue) == "a"


async def test_a_failure_waits_longer_than_what_was_planned_before() -> None:
    queue = _queue()
    queue.add_after("a", 0.01)
    queue.failed("a")
    assert await _due(queue, 0.1) is None


async def test_very_many_failures_stay_at_the_cap() -> None:
    queue = _queue()
    for _ in range(2000):
        last_s = queue.failed("a")
    assert last_s == 60.0


async def test_the_earliest_of_several_delays_counts() -> None:
    queue = _queue()
    queue.add_after("a", 5.0)
    queue.add_after("a", 0.03)
    queue.add_after("a", 4.0)
    assert await _due(queue) == "a"


async def test_news_come_at_once_even_while_a_delay_runs_and_cancel_it() -> None:
    queue = _queue()
    queue.add_after("a", 0.05)
    queue.add("a")
    assert await _due(queue) == "a"
    queue.done("a")
    assert await _due(queue, 0.1) is None


async def test_two_workers_never_hold_the_same_key() -> None:
    queue = _queue()
    held: set[str] = set()
    passes = 0

    async def worker() -> None:
        nonlocal passes
        while True:
            key = await queue.get()
            assert key not in held
            held.add(key)
            await asyncio.sleep(0)
            held.discard(key)
            passes += 1
            queue.done(key)

    workers = [asyncio.create_task(worker()) for _ in range(4)]
    for round_number in range(200):
        queue.add(f"k{round_number % 3}")
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert all(not task.done() for task in workers)
    assert passes >= 3
    for task in workers:
        task.cancel()


async def test_keys_that_failed_and_are_gone_leave_nothing() -> None:
    queue: WorkQueue[int] = WorkQueue(first_s=0, cap_s=0)
    for key in range(1000):
        queue.add(key)
        assert await queue.get() == key
        queue.failed(key)
        queue.done(key)
        assert await queue.get() == key
        queue.succeeded(key)
        queue.done(key)
    assert not any((queue._failures, queue._timers, queue._waiting, queue._running, queue._again))
