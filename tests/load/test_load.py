"""The load client against a small server that behaves well, and in each way that it must not."""

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from e2e import load as load_module
from e2e.answers import Answer, Ask, Fault, summary
from e2e.exchange import Target
from e2e.load import Load, LoadPlan

TOKENS = 3


class Misbehaving:
    """An OpenAI server of one route; the model's name chooses how an answer goes wrong."""

    def __init__(self) -> None:
        self.requests = 0
        self.open = self.most_open = 0
        self.release = asyncio.Event()
        self.peers: set[object] = set()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        try:
            return await self.answer(request, await request.json())
        finally:
            self.open -= 1

    async def answer(self, request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        model = str(body["model"])
        if model == "draining" and self.requests < 3:
            return web.Response(status=503, headers={"Retry-After": "0"}, text="draining")
        if model == "full":
            return web.Response(status=429, headers={"Retry-After": "1"}, text="the queue is full")
        if model == "failed":
            return web.Response(status=503, text="no way back")
        if not body["stream"]:
            return web.json_response(whole(2 if model == "short" else TOKENS))
        return await self.stream(request, model, bool(body.get("stream_options")))

    async def stream(self, request: web.Request, model: str, usage: bool) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "x-request-id": f"r{self.requests}"}
        )
        await response.prepare(request)
        for number in range(TOKENS - (model == "short")):
            await send(response, {"choices": [{"delta": {"content": f"{number} "}, "finish_reason": None}]})
            if model == "slow":
                await self.release.wait()
            if model == "cut" and request.transport:
                request.transport.abort()
                return response
        if model == "error":
            await send(response, {"error": {"message": "the engine died"}})
            return response
        await send(response, {"choices": [{"delta": {}, "finish_reason": "length"}]})
        if usage:
            await send(response, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": TOKENS}})
        if model != "endless":
            await response.write(b"data: [DONE]\n\n")
        return response


def whole(tokens: int) -> dict[str, object]:
    choice = {"message": {"content": "0 1 2"}, "finish_reason": "length"}
    return {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}


async def send(response: web.StreamResponse, chunk: dict[str, object]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@asynccontextmanager
async def serving(server: Misbehaving) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


class Served:
    """The server in a thread of its own, so that a test may block."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server: Misbehaving | None = None
        self.url = ""
        self.ready = threading.Event()
        self.stop: asyncio.Event | None = None
        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(self.run()), daemon=True)

    async def run(self) -> None:
        self.server, self.stop = Misbehaving(), asyncio.Event()
        async with serving(self.server) as self.url:
            self.ready.set()
            await self.stop.wait()

    def call(self, event: asyncio.Event | None) -> None:
        if event is not None:
            self.loop.call_soon_threadsafe(event.set)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    served.thread.start()
    assert served.ready.wait(5)
    yield served
    assert served.server is not None
    served.call(served.server.release)
    served.call(served.stop)
    served.thread.join(5)
    served.loop.close()


def plan(
    url: str, model: str = "good", *, requests: int | None = 4, stream: bool = True, usage: bool = True
) -> LoadPlan:
    target = Target(url=lambda: url, model=model, stream=stream, usage=usage, request_timeout_s=5, retries=4)
    return LoadPlan(target=target, ask=lambda n: Ask(f"{n}", TOKENS), clients=2, requests=requests)


def run(plan: LoadPlan) -> list[Answer]:
    with Load.start(plan) as load:
        return load.wait(10)


@pytest.mark.parametrize(("stream", "usage"), [(True, True), (True, False), (False, True)])
def test_every_good_answer_is_recorded_with_its_tokens(served: Served, stream: bool, usage: bool) -> None:
    answers = run(plan(served.url, stream=stream, usage=usage))
    result = summary(answers)
    assert (result.requests, result.answered, result.completion_tokens) == (4, 4, 4 * TOKENS)
    assert sorted(answer.number for answer in answers) == [0, 1, 2, 3]
    assert all(answer.time_to_first_token_s is not None and answer.status == 200 for answer in answers)
    assert answers[0].prompt_tokens == (5 if usage or not stream else None)


@pytest.mark.parametrize(
    ("model", "stream", "fault"),
    [
        ("cut", True, Fault.RESET),
        ("endless", True, Fault.NOT_DONE),
        ("error", True, Fault.ERROR_EVENT),
        ("full", True, Fault.REFUSED),
        ("failed", True, Fault.REFUSED),
        ("short", False, Fault.WRONG_COUNT),
    ],
)
def test_an_answer_that_goes_wrong_is_recorded_as_its_fault(
    served: Served, model: str, stream: bool, fault: Fault
) -> None:
    answers = run(plan(served.url, model, requests=2, stream=stream))
    assert [answer.fault for answer in answers] == [fault, fault]
    assert all(answer.retries == 0 for answer in answers)


def test_a_draining_server_is_asked_again_after_its_pause(served: Served) -> None:
    answers = run(plan(served.url, "draining"))
    result = summary(answers)
    assert (result.answered, result.retries) == (4, 2)


def test_a_connection_that_never_comes_about_is_tried_again_and_then_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.exchange._RETRY_PAUSE_S", 0.01)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        answers = run(plan(f"http://127.0.0.1:{closed.getsockname()[1]}/v1", requests=1))
    assert [(answer.fault, answer.retries) for answer in answers] == [(Fault.CONNECT, 4)]


def test_the_loop_is_closed(served: Served) -> None:
    run(plan(served.url, requests=10))
    assert served.server is not None and served.server.most_open <= 2
    assert len(served.server.peers) == 10, "each request has a connection of its own"


def test_an_answer_keeps_the_servers_name_for_its_request(served: Served) -> None:
    assert {answer.server_id for answer in run(plan(served.url))} == {"r1", "r2", "r3", "r4"}


def test_open_requests_are_seen_and_a_load_that_is_told_to_end_waits_for_them(served: Served) -> None:
    with Load.start(plan(served.url, "slow", requests=None)) as load:
        while load.open_requests() != {0: TOKENS - 1, 1: TOKENS - 1}:
            load._thread.join(0.01)
        load.end()
        with pytest.raises(TimeoutError, match="0: 2"):
            load.wait(0.05)
        assert served.server is not None
        served.call(served.server.release)
        assert summary(load.wait(5)).answered == 2


def test_a_load_that_gets_on_is_waited_for_however_long_it_takes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served.server
    assert server is not None
    with Load.start(plan(served.url, "slow", requests=2)) as load:
        ticks = itertools.count()
        monkeypatch.setattr(load, "_progress", lambda: (next(ticks), {}))
        threading.Timer(0.5, lambda: served.call(server.release)).start()
        assert summary(load.wait(0.05)).answered == 2


def test_a_cancelled_load_hangs_up_and_says_so(served: Served) -> None:
    with Load.start(plan(served.url, "slow")) as load:
        while len(load.open_requests()) < 2:
            load._thread.join(0.01)
    assert [answer.fault for answer in load.answers] == [Fault.CANCELLED] * 2


def test_the_command_prints_a_summary_and_fails_when_an_answer_is_missing(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", served.url, "--requests", "3", "--max-tokens", str(TOKENS), "--json", str(tmp_path / "s.json")]
    assert load_module.main([*words, "--model", "good"]) == 0
    assert json.loads((tmp_path / "s.json").read_text())["answered"] == 3
    assert "3 of 3 requests answered" in capsys.readouterr().out
    assert load_module.main([*words, "--model", "cut"]) == 1


def test_a_load_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_module.main(["--url", "http://127.0.0.1:1/v1", "--model", "m"])
    assert "--requests or --seconds is required" in capsys.readouterr().err
