"""Sampling engines: a bad answer is a missing sample with a reason, never a zero."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from pagefleet_api.runtimes import Runtime, place
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.engines.scraper import Scraper, admin_address
from pagefleet_operator.facts.observed import Pod
from pagefleet_operator.metrics import Metrics
from pagefleet_operator.settings import Timings

_KEY = ServiceKey("n", "s")
_LOAD = {
    "state": "ready",
    "running": 3,
    "waiting": 1,
    "maxNumSeqs": 8,
    "blockSize": 16,
    "blocksUsed": 5,
    "blocksTotal": 10,
    "queuedPromptTokens": 0,
    "secondsSinceLastStep": 0.1,
}


class Engine:
    """One engine whose answers a test sets."""

    def __init__(self) -> None:
        self.status, self.body, self.delay_s = 200, json.dumps(_LOAD), 0.0
        self.asked = 0
        self.told: list[str] = []
        self.exposition = ""
        self.connections: set[Any] = set()

    async def load(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.connections.add(request.transport)
        await asyncio.sleep(self.delay_s)
        return web.Response(status=self.status, text=self.body)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(status=self.status, text=self.exposition)

    async def tell(self, request: web.Request) -> web.Response:
        self.told.append(request.path)
        return web.Response(status=self.status, headers={"Location": "/another-pod"} if self.status == 307 else {})


class Bench:
    """An engine on a free port and a scraper that reaches it for every pod."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine, self.metrics = engine, Metrics()
        self.metrics.begin(*_KEY.series)
        self.changed: list[ServiceKey] = []
        self.address = f"http://127.0.0.1:{port}"
        self.scraper = self.patient_for(20.0)

    def patient_for(self, timeout_s: float) -> Scraper:
        """A scraper that waits so long for an answer: a slow machine's must count where silence is not the matter."""
        timings = Timings(scrape_timeout_s=timeout_s)
        return Scraper(timings, self.metrics, self.changed.append, lambda _: self.address)

    def errors(self) -> str:
        lines = self.metrics.exposition().decode().splitlines()
        counted = (line for line in lines if line.startswith("pagefleet_scrape_errors_total{"))
        return "\n".join(line for line in counted if not line.endswith(" 0.0"))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    engine = Engine()
    app = web.Application()
    app.router.add_get("/load", engine.load)
    app.router.add_get("/metrics", engine.metrics)
    app.router.add_post("/{verb}", engine.tell)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made = Bench(engine, runner.addresses[0][1])
    yield made
    await made.scraper.close()
    await runner.cleanup()


def _pod(uid: str = "p", *, ready: bool = True, running: bool = True, restarts: int = 0) -> Pod:
    return Pod(name=uid, uid=uid, ip="10.0.0.1", ready=ready, started=True, running=running, restarts=restarts)


async def _until(state: Any) -> None:
    async with asyncio.timeout(20):
        while not state():  # noqa: ASYNC110 - the state is somebody else's
            await asyncio.sleep(0.01)


async def test_a_good_answer_becomes_a_sample_and_is_reported(bench: Bench) -> None:
    bench.scraper.watch(_KEY, [_pod()], interval_s=0.05, matters=True)
    await _until(lambda: bench.changed)
    sample = bench.scraper.samples(_KEY)["p"]
    assert (sample.load.running, sample.load.kv_usage) == (3, 0.5)
    assert bench.changed[0] == _KEY


async def test_a_foreign_engine_is_read_in_its_own_words_and_never_told_to_drain(bench: Bench) -> None:
    bench.engine.exposition = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n" + "other 1\n" * 10_000
    foreign = replace(_pod(), foreign=True, place=place(Runtime.VLLM))
    silent = replace(_pod("q"), foreign=True)
    bench.scraper.watch(_KEY, [foreign, silent], interval_s=0.05, matters=True)
    await _until(lambda: bench.changed)
    (sample,) = bench.scraper.samples(_KEY).values()
    assert (sample.load.in_flight, sample.load.kv_usage, sample.load.state) == (3, None, None)
    assert await bench.scraper.drain(foreign)
    assert await bench.scraper.undrain(silent)
    assert bench.engine.told == []


async def test_a_foreign_text_that_cannot_be_read_is_malformed(bench: Bench) -> None:
    bench.engine.exposition = "vllm:num_requests_running{ 2\n"
    foreign = replace(_pod(), foreign=True, place=place(Runtime.VLLM))
    bench.scraper.watch(_KEY, [foreign], interval_s=0.05, matters=True)
    await _until(lambda: bench.changed)
    assert bench.scraper.samples(_KEY) == {}
    assert 'reason="malformed"' in bench.errors()


def test_each_pod_is_asked_at_the_port_of_its_engine() -> None:
    assert admin_address(_pod()) == "http://10.0.0.1:8001"
    assert admin_address(replace(_pod(), place=place(Runtime.VLLM))) == "http://10.0.0.1:8000"


async def test_rounds_go_on_over_one_kept_connection(bench: Bench) -> None:
    bench.scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=False)
    await _until(lambda: bench.engine.asked >= 5)
    assert len(bench.engine.connections) == 1
    assert bench.changed == []


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, "", "malformed"),
        (200, "<html>", "malformed"),
        (200, json.dumps({**_LOAD, "running": -1}), "malformed"),
        (200, json.dumps({**_LOAD, "blocksTotal": 0}), "malformed"),
        (200, json.dumps({key: value for key, value in _LOAD.items() if key != "waiting"}), "malformed"),
        (200, json.dumps({**_LOAD, "waiting": float("nan")}), "malformed"),
        (503, json.dumps(_LOAD), "http_503"),
        (404, "no", "http_404"),
    ],
)
async def test_a_bad_answer_leaves_the_last_good_sample_and_is_counted(
    bench: Bench, status: int, body: str, reason: str
) -> None:
    bench.scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=True)
    await _until(lambda: bench.scraper.samples(_KEY))
    good = bench.scraper.samples(_KEY)["p"]
    bench.engine.status, bench.engine.body = status, body
    await _until(bench.errors)
    kept = bench.scraper.samples(_KEY)["p"]
    assert kept.load == good.load
    assert f'reason="{reason}"' in bench.errors()


async def test_silence_is_a_timeout(bench: Bench) -> None:
    bench.engine.delay_s = 0.5
    scraper = bench.patient_for(0.2)
    scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=True)
    await _until(bench.errors)
    assert 'reason="timeout"' in bench.errors()
    assert scraper.samples(_KEY) == {}
    await scraper.close()


async def test_a_closed_port_is_a_refusal(bench: Bench) -> None:
    scraper = Scraper(Timings(), bench.metrics, bench.changed.append, lambda _: "http://127.0.0.1:1")
    scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=True)
    await _until(bench.errors)
    assert 'reason="refused"' in bench.errors()
    assert not await scraper.drain(_pod())
    await scraper.close()


async def test_a_pod_that_starts_is_no_error_and_one_that_does_not_run_is_not_asked(bench: Bench) -> None:
    bench.engine.status = 503
    bench.scraper.watch(_KEY, [_pod("loads", ready=False)], interval_s=0.02, matters=False)
    await _until(lambda: bench.engine.asked >= 2)
    assert bench.errors() == ""
    bench.scraper.watch(_KEY, [_pod("new", ready=False, running=False)], interval_s=0.02, matters=True)
    await asyncio.sleep(0.1)
    asked = bench.engine.asked
    await asyncio.sleep(0.1)
    assert bench.engine.asked == asked


async def test_samples_of_pods_that_left_are_forgotten(bench: Bench) -> None:
    bench.scraper.watch(_KEY, [_pod("a"), _pod("b")], interval_s=0.02, matters=True)
    await _until(lambda: len(bench.scraper.samples(_KEY)) == 2)
    bench.scraper.watch(_KEY, [_pod("a")], interval_s=0.02, matters=True)
    assert set(bench.scraper.samples(_KEY)) == {"a"}
    bench.scraper.forget(_KEY)
    assert bench.scraper.samples(_KEY) == {}


async def test_a_sample_goes_with_the_container_that_gave_it(bench: Bench) -> None:
    bench.scraper.watch(_KEY, [_pod("a"), _pod("b")], interval_s=60.0, matters=True)
    await _until(lambda: len(bench.scraper.samples(_KEY)) == 2)
    bench.scraper.watch(_KEY, [_pod("a"), _pod("b", ready=False, restarts=1)], interval_s=60.0, matters=True)
    assert set(bench.scraper.samples(_KEY)) == {"a"}
    bench.scraper.watch(_KEY, [_pod("a", ready=False, running=False)], interval_s=60.0, matters=True)
    assert bench.scraper.samples(_KEY) == {}


async def test_an_endless_answer_is_cut_off_and_counted(bench: Bench) -> None:
    bench.engine.body = "x" * 100_000
    bench.scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=True)
    await _until(bench.errors)
    assert 'reason="too_large"' in bench.errors()


async def test_sampling_that_a_bug_ended_begins_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    failures = [RuntimeError("a bug")]
    reported: list[ServiceKey] = []

    def changed(key: ServiceKey) -> None:
        if failures:
            raise failures.pop()
        reported.append(key)

    scraper = Scraper(Timings(), bench.metrics, changed, lambda _: "http://127.0.0.1:1")
    scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=True)
    await _until(lambda: len(reported) >= 2)
    assert [record.message for record in caplog.records].count("scraping_crashed") == 1
    scraper.forget(_KEY)
    reported.clear()
    await asyncio.sleep(0.05)
    assert not reported
    await scraper.close()


async def test_a_shorter_interval_counts_at_once(bench: Bench) -> None:
    bench.scraper.watch(_KEY, [_pod()], interval_s=60.0, matters=True)
    await _until(lambda: bench.engine.asked == 1)
    bench.scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=True)
    await _until(lambda: bench.engine.asked >= 3)


async def test_an_engine_is_told_to_drain_and_to_serve_again(bench: Bench) -> None:
    assert await bench.scraper.drain(_pod())
    assert await bench.scraper.undrain(_pod())
    assert bench.engine.told == ["/drain", "/undrain"]
    bench.engine.status = 500
    assert not await bench.scraper.drain(_pod())


async def test_an_engine_sends_us_to_no_other_address(bench: Bench) -> None:
    bench.engine.status = 307
    assert not await bench.scraper.drain(_pod())
    assert "/another-pod" not in bench.engine.told


@pytest.mark.parametrize(
    ("ip", "address"),
    [("10.1.2.3", "http://10.1.2.3:8001"), ("fd00::1", "http://[fd00::1]:8001"), (None, None)],
)
async def test_the_admin_port_of_a_pod(ip: str | None, address: str | None) -> None:
    assert admin_address(Pod(name="p", uid="p", ip=ip)) == address
    scraper = Scraper(Timings(), Metrics(), lambda _: None)
    if ip is None:
        assert not await scraper.drain(Pod(name="p", uid="p", ip=None))


async def test_a_look_brings_samples_before_the_round_is_due(bench: Bench) -> None:
    bench.scraper.watch(_KEY, [_pod()], interval_s=60, matters=False)
    await _until(lambda: bench.scraper.samples(_KEY))
    bench.engine.body = json.dumps({**_LOAD, "running": 7})
    await bench.scraper.look(_KEY)
    assert bench.scraper.samples(_KEY)["p"].load.running == 7


async def test_a_look_at_a_service_that_is_not_watched_does_nothing(bench: Bench) -> None:
    await bench.scraper.look(_KEY)
    assert bench.engine.asked == 0


_EXPOSITION = """
# TYPE pagefleet_requests_total counter
pagefleet_requests_total{outcome="stop"} 7.0
pagefleet_requests_total{outcome="error"} 1.0
pagefleet_time_to_first_token_seconds_bucket{le="0.5"} 6.0
pagefleet_time_to_first_token_seconds_bucket{le="+Inf"} 8.0
pagefleet_time_to_first_token_seconds_sum 3.5
pagefleet_time_to_first_token_seconds_count 8.0
"""


async def test_histograms_are_read_only_while_somebody_asks_for_them(bench: Bench) -> None:
    bench.engine.exposition = _EXPOSITION
    bench.scraper.watch(_KEY, [_pod()], interval_s=60, matters=False)
    await _until(lambda: bench.scraper.samples(_KEY))
    assert bench.scraper.latencies(_KEY) == {}
    bench.scraper.watch(_KEY, [_pod()], interval_s=60, matters=False, latencies=True)
    await _until(lambda: bench.scraper.latencies(_KEY))
    measured = bench.scraper.latencies(_KEY)["p"]
    assert (measured.ended, measured.failed, measured.itl) == (8, 1, None)
    assert measured.ttft is not None
    assert measured.ttft.count == 8
    bench.scraper.watch(_KEY, [_pod(restarts=1)], interval_s=60, matters=False, latencies=True)
    assert bench.scraper.latencies(_KEY) == {}
    bench.scraper.forget(_KEY)
    assert bench.scraper.latencies(_KEY) == {}


async def test_an_exposition_that_cannot_be_read_is_counted_and_the_sample_stays(bench: Bench) -> None:
    bench.engine.exposition = "pagefleet_requests_total{ 7"
    bench.scraper.watch(_KEY, [_pod()], interval_s=0.02, matters=False, latencies=True)
    await _until(bench.errors)
    assert 'reason="malformed"' in bench.errors()
    assert bench.scraper.latencies(_KEY) == {}
    await _until(lambda: bench.scraper.samples(_KEY))
