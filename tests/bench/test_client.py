"""The load client against a server of its own: times of text, failures by name, windows around a long prompt."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web

from bench.engine import client, workloads
from bench.engine.client import Record
from bench.engine.online import gap_windows, good, latencies
from bench.engine.results import WorkFailed

WRONG_PROMPT_TOKENS, REFUSED_PROMPT_TOKENS = 3, 4


async def answer(request: web.Request) -> web.StreamResponse:
    """A stream as the engine sends it; prompts of two lengths get a wrong answer or none."""
    asked = json.loads(await request.read())
    if len(asked["prompt"]) == REFUSED_PROMPT_TOKENS:
        return web.json_response({"error": {"message": "full"}}, status=429)
    tokens = asked["max_tokens"] - (len(asked["prompt"]) == WRONG_PROMPT_TOKENS)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    texts = [" w1"] * tokens + [""]
    for text in texts:
        finish = "null" if text else '"length"'
        choice = f'{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{finish}}}'
        await response.write(f'data: {{"id":"x","choices":[{choice}],"usage":null}}\n\n'.encode())
        await asyncio.sleep(0.001)
    usage = f'{{"prompt_tokens":1,"completion_tokens":{tokens}}}'
    await response.write(f'data: {{"id":"x","choices":[],"usage":{usage}}}\n\ndata: [DONE]\n\n'.encode())
    return response


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    loop, started, found = asyncio.new_event_loop(), threading.Event(), list[str]()

    async def start() -> None:
        application = web.Application()
        application.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.append(site.name)
        started.set()

    def serve() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_a_closed_loop_notes_the_time_of_every_piece_of_text(url: str) -> None:
    batch = workloads.uniform(6, 8, 5, 1, 2048)
    load = client.drive(url, batch, 2)
    records = good(load.records)
    assert len(records) == 6
    assert {len(record.times_s) for record in records} == {5}
    assert all(record.sent_s < record.times_s[0] <= record.times_s[-1] for record in records)
    assert load.client_cpu_s > 0
    assert latencies(records)["ttft_p50_ms"] > 0


@pytest.mark.parametrize(
    ("prompt_tokens", "reason"), [(WRONG_PROMPT_TOKENS, "4 tokens, not 5"), (REFUSED_PROMPT_TOKENS, "HTTP 429")]
)
def test_a_short_or_refused_answer_fails_the_work(url: str, prompt_tokens: int, reason: str) -> None:
    load = client.drive(url, workloads.uniform(1, prompt_tokens, 5, 1, 2048), 1)
    with pytest.raises(WorkFailed, match=reason):
        good(load.records)


def test_nobody_at_the_address_fails_the_work() -> None:
    load = client.drive("http://127.0.0.1:9", workloads.uniform(1, 2, 1, 1, 2048), 1)
    with pytest.raises(WorkFailed, match="1 of 1"):
        good(load.records)


def test_gaps_are_told_apart_by_when_a_long_prompt_was_computed() -> None:
    calm, slow = [0.1 * step for step in range(20)], [2.0 + 0.5 * step for step in range(5)]
    stream = Record(0.0, [*calm, *slow, *[4.1 + 0.1 * step for step in range(20)]], None)
    windows = gap_windows([stream], [Record(1.95, [4.0], None)])
    assert windows["before"] is not None and windows["before"]["max"] == pytest.approx(100)
    assert windows["during"] is not None and windows["during"]["p99"] == pytest.approx(500)
    assert windows["after"] is not None and windows["after"]["max"] == pytest.approx(100)
    assert gap_windows([stream], [Record(9.0, [9.5], None)])["during"] is None
