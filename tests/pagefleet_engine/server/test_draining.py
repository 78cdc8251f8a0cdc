"""Drains by the admin port and by signals, with the clock moved instead of waited for."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagefleet_api.metrics import Engine
from pagefleet_engine.api.drain import GRACE_S
from tests.pagefleet_engine.server.inside import Inside, engine, sse, until

pytestmark = pytest.mark.asyncio
REQUESTS_ABORTED = (Engine.REQUESTS, ("abort",))


def skip_grace(running: Inside) -> None:
    """As if the drain had begun a grace earlier."""
    gate = running.server.host.gate
    began_at_s = gate.drain.began_at_s
    assert began_at_s is not None
    gate.change_drain(lambda state: replace(state, began_at_s=began_at_s - GRACE_S))


async def started(running: Inside, **fields: Any) -> "asyncio.Task[Any]":
    """A request of 30 steps that has its first tokens."""
    seen = running.server.host.recorder.inter_token.count
    task = asyncio.create_task(running.complete("abc", max_tokens=30, **fields))
    await until(lambda: running.server.host.recorder.inter_token.count > seen)
    return task


async def test_a_drain_serves_for_the_grace_then_refuses_while_streams_finish(tiny: Path) -> None:
    async with engine(tiny, step_s=0.02) as running:
        stream = await started(running, stream=True)
        drained = await running.admin.post("/drain")
        assert (drained.status_code, drained.json()) == (202, {"state": "draining", "running": 1, "waiting": 0})
        assert (await running.admin.get("/readyz")).status_code == 503
        assert (await running.admin.get("/healthz")).status_code == 200
        served = await running.complete("abc", max_tokens=1)
        assert (served.status_code, served.headers["connection"]) == (200, "close")
        skip_grace(running)
        refused = await running.complete("abc", max_tokens=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) >= 1
        assert (await running.load())["state"] == "draining"
        assert sse((await stream).text)[-1] == "[DONE]"
        assert await running.metric('pagefleet_engine_state{model_name="tiny",state="draining"}') == 1


async def test_draining_twice_is_draining_once_and_undrain_serves_again(tiny: Path) -> None:
    async with engine(tiny) as running:
        await running.admin.post("/drain")
        began = running.server.host.gate.drain
        assert (await running.admin.post("/drain")).status_code == 202
        assert running.server.host.gate.drain == began
        skip_grace(running)
        assert (await running.admin.post("/undrain")).json()["state"] == "ready"
        assert (await running.complete("abc", max_tokens=1)).status_code == 200
        assert (await running.admin.get("/readyz")).status_code == 200


async def test_a_signal_lets_streams_whole_answers_and_queued_ones_finish_and_exits_0(tiny: Path) -> None:
    async with engine(tiny, "--max-num-seqs", "2", step_s=0.01) as running:
        asked = [await started(running, stream=True)]
        asked += [asyncio.create_task(running.complete("abc", max_tokens=10, stream=s)) for s in (False, True, False)]
        await until(lambda: running.server.host.gate.open_sequences == 4)
        running.signal()
        assert (await running.admin.post("/undrain")).status_code == 409
        skip_grace(running)
        assert (await running.complete("abc")).status_code == 503
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert sse(answers[0].text)[-1] == sse(answers[2].text)[-1] == "[DONE]"
        assert await asyncio.wait_for(running.running, 2) == 0


async def test_an_idle_engine_that_was_drained_before_leaves_at_once(tiny: Path) -> None:
    async with engine(tiny) as running:
        await running.admin.post("/drain")
        skip_grace(running)
        running.signal()
        assert await asyncio.wait_for(running.running, 1) == 0


async def test_an_idle_engine_listens_on_for_the_grace(tiny: Path) -> None:
    async with engine(tiny) as running:
        running.signal()
        await asyncio.sleep(0.3)
        assert not running.running.done()
        assert (await running.complete("abc", max_tokens=1)).status_code == 200


@pytest.mark.parametrize("second_signal", [True, False])
async def test_a_cut_ends_streams_with_an_error_event_counts_aborts_and_exits_0(
    tiny: Path, second_signal: bool
) -> None:
    timeout_s = "600" if second_signal else "0"
    flags = ("--drain-timeout-s", timeout_s, "--max-num-seqs", "2")
    async with engine(tiny, *flags, step_s=0.02) as running:
        streams = [await started(running, stream=True) for _ in range(2)]
        queued = asyncio.create_task(running.complete("abc", max_tokens=5))
        await until(lambda: len(running.server.host.core._flights) == 3)
        running.signal()
        if second_signal:
            running.signal()
        answers = await asyncio.gather(*streams, queued)
        assert [sse(answer.text)[-1]["error"]["code"] for answer in answers[:2]] == ["shutting_down"] * 2
        assert (answers[2].status_code, answers[2].json()["error"]["code"]) == (503, "shutting_down")
        assert await asyncio.wait_for(running.running, 2) == 0
        assert running.server.host.recorder.counters[REQUESTS_ABORTED] == 3


async def test_a_signal_while_the_model_loads_ends_the_process_at_once(tiny: Path) -> None:
    async with engine(tiny, ready=False, hold=threading.Event()) as running:
        await until(lambda: running.server.host.core.heard_at_s is not None)
        running.signal()
        assert await asyncio.wait_for(running.running, 1) == 0


async def test_a_request_that_is_tokenised_while_the_process_ends_is_refused_and_counted_as_such(tiny: Path) -> None:
    async with engine(tiny) as running:
        host = running.server.host
        host.cut()
        refused = await running.complete("abc", stream=True)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert host.gate.open_sequences == 0
        assert await running.metric('pagefleet_rejections_total{model_name="tiny",reason="draining"}') == 1
