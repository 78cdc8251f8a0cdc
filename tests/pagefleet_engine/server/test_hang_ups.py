"""A client that hangs up frees its seat within a step, on every path, and is counted once."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.pagefleet_engine.server.inside import Inside, engine, until

pytestmark = pytest.mark.asyncio
STEP_S = 0.02
LONG: dict[str, Any] = {"prompt": "count", "max_tokens": 400, "ignore_eos": True}


async def open_request(running: Inside, **fields: Any) -> asyncio.StreamWriter:
    """Send a request over a bare socket, to be closed without a word."""
    body = json.dumps({**LONG, **fields}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", running.client.base_url.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


async def opened(running: Inside, count: int) -> None:
    await until(lambda: len(running.server.host.core._flights) == count)


@pytest.mark.parametrize("streamed", [True, False])
async def test_hanging_up_on_a_running_answer_lets_the_next_request_start(tiny: Path, streamed: bool) -> None:
    async with engine(tiny, "--max-num-seqs", "1", step_s=STEP_S) as running:
        writer = await open_request(running, stream=streamed)
        await until(lambda: running.server.host.recorder.inter_token.count > 2)
        writer.close()
        took_s = await until(running.idle)
        assert took_s < 10 * STEP_S
        assert (await running.complete("hi", max_tokens=5)).status_code == 200
        assert await running.requests_total() == {"abort": 1, "length": 1, "stop": 0, "error": 0}
        assert await running.metric("pagefleet_client_disconnects_total") == 1


@pytest.mark.parametrize("streamed", [True, False])
async def test_hanging_up_in_the_queue_leaves_the_others_alone(tiny: Path, streamed: bool) -> None:
    async with engine(tiny, "--max-num-seqs", "1", step_s=STEP_S) as running:
        first = await open_request(running, stream=True)
        await opened(running, 1)
        queued = await open_request(running, stream=streamed)
        await opened(running, 2)
        queued.close()
        await opened(running, 1)
        assert running.server.host.gate.open_sequences == 1
        first.close()
        await until(running.idle)
        assert (await running.requests_total())["abort"] == 2


async def test_hanging_up_frees_every_choice_and_counts_one_client(tiny: Path) -> None:
    async with engine(tiny, step_s=STEP_S) as running:
        writer = await open_request(running, stream=True, n=3)
        await until(lambda: running.server.host.recorder.inter_token.count > 4)
        writer.close()
        await until(running.idle)
        assert (await running.requests_total())["abort"] == 3
        assert await running.metric("pagefleet_client_disconnects_total") == 1
        assert await running.metric("pagefleet_prompt_tokens_total") == len("count")


async def test_a_stop_string_frees_the_seat_and_counts_as_stop(tiny: Path) -> None:
    async with engine(tiny, "--max-num-seqs", "1", step_s=0.001) as running:
        answer = (await running.complete("abc.", max_tokens=400, stop=["c.a"])).json()
        assert answer["choices"][0] == {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}
        assert answer["usage"]["completion_tokens"] == 5
        await until(lambda: running.server.host.core.status.running == 0)  # type: ignore[union-attr]
        assert await running.requests_total() == {"stop": 1, "length": 0, "abort": 0, "error": 0}
        assert await running.metric("pagefleet_generation_tokens_total") == 5
        assert await running.metric("pagefleet_inter_token_latency_seconds_count") == 4


async def test_requests_cancelled_at_any_moment_leave_nothing_open(tiny: Path) -> None:
    moments_s = random.Random(24)
    async with engine(tiny, "--max-num-seqs", "4", step_s=0.001) as running:

        async def one(place: int) -> None:
            writer = await open_request(running, stream=place % 2 == 0, n=1 + place % 3)
            await asyncio.sleep(moments_s.uniform(0, 0.3))
            writer.close()

        await asyncio.gather(*(one(place) for place in range(500)))
        await until(running.idle)
        host = running.server.host
        await until(lambda: host.core.status is not None and host.core.status.running == 0)
        assert (host.gate.open_sequences, host.open_responses, host.core.busy_since_s) == (0, 0, None)
        assert await running.metric("pagefleet_kv_cache_usage_ratio") == 0
        assert await running.metric("pagefleet_kv_blocks_leaked") == 0
        assert (await running.complete("hi", max_tokens=3)).status_code == 200
