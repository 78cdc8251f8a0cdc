"""A whole engine inside the test's own process: real HTTP and unix sockets, the fake core in a thread."""

import asyncio
import contextlib
import json
import signal
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pagefleet_api.launch import Launch
from pagefleet_engine.api.server import Server
from pagefleet_engine.core.channel import ChannelClosed, CoreChannel
from pagefleet_engine.models.source import resolve
from tests.pagefleet_engine.server.fake_core import FakeCore, Script

MODEL = "tiny"


class ThreadCore:
    """The fake core at the other end of a real socket."""

    def __init__(self, launch: Launch, script: Script) -> None:
        self._path = str(Path(tempfile.mkdtemp(prefix="pf-")) / "core.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self._path)
        self.listener.listen(1)
        self._launch, self._script = launch, script
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def watch(self, ended: Callable[[int], None]) -> None:
        """A thread has no exit status; the end of its socket is told by the socket."""

    def resident_bytes(self) -> int:
        """A thread has none of its own."""
        return 4096

    def _run(self) -> None:
        with contextlib.suppress(ChannelClosed, SystemExit):
            channel = CoreChannel.connect(self._path)
            try:
                FakeCore(channel, self._launch, self._script).run()
            finally:
                channel.close()


@dataclass
class Inside:
    """One running engine and its clients."""

    server: Server
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    running: asyncio.Task[int]

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(f"/v1/{path}", json=body)

    async def chat(self, text: str, **fields: Any) -> httpx.Response:
        return await self.post("chat/completions", messages=[{"role": "user", "content": text}], **fields)

    async def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return await self.post("completions", prompt=prompt, **fields)

    async def load(self) -> dict[str, Any]:
        return dict((await self.admin.get("/load")).json())

    async def idle(self) -> bool:
        load = await self.load()
        return (load["running"], load["waiting"]) == (0, 0)

    async def metric(self, series: str) -> float:
        for line in (await self.admin.get("/metrics")).text.splitlines():
            if line.startswith(series):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(series)

    async def requests_total(self) -> dict[str, float]:
        outcomes = ("stop", "length", "abort", "error")
        series = 'pagefleet_requests_total{{model_name="tiny",outcome="{}"}}'
        return {outcome: await self.metric(series.format(outcome)) for outcome in outcomes}

    def signal(self) -> None:
        self.server.on_signal(signal.SIGTERM)


async def until(true: Callable[[], Any], limit_s: float = 5.0) -> float:
    """Poll an async or plain condition; gives the seconds it took."""
    begin = time.monotonic()
    while True:
        value = true()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return time.monotonic() - begin
        assert time.monotonic() - begin < limit_s, "condition not met in time"
        await asyncio.sleep(0.01)


def _bound() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    return listener


@contextlib.asynccontextmanager
async def engine(
    model: Path, *flags: str, ready: bool = True, admin: bool = True, keys: tuple[str, ...] = (), **script: Any
) -> AsyncIterator[Inside]:
    """An engine whose fake core plays `script`; with `admin`, on two ports."""
    ports = ["--port", "0", *(["--admin-port", "0"] if admin else [])]
    words = [word for key in keys for word in ("--api-key", key)]
    launch = Launch.parse(["--model", f"file://{model}", "--served-model-name", MODEL, *ports, *words, *flags])
    sockets = [_bound() for _ in range(2 if admin else 1)]
    urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    server = Server(launch, resolve(launch.model), (), sockets, ThreadCore(launch, Script(**script)))
    running = asyncio.create_task(server.run())
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=urls[0], timeout=20, limits=limits) as client,
        httpx.AsyncClient(base_url=urls[-1], timeout=20, limits=limits) as admin_client,
    ):
        try:
            if ready:
                await until(lambda: server.host.gate.was_ready, 20)
            yield Inside(server, client, admin_client, running)
        finally:
            server.on_signal(signal.SIGTERM)
            server.on_signal(signal.SIGTERM)
            await running


def sse(text: str) -> list[Any]:
    """The data of every event of a stream; `[DONE]` stays a string."""
    datas = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def choices(events: list[Any], index: int = 0) -> list[dict[str, Any]]:
    """The chunks of one choice."""
    found = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return [choice for choice in found if choice["index"] == index]


def stream_text(events: list[Any], index: int = 0) -> str:
    """The joined text of one choice, chat or completion."""
    deltas = [choice.get("delta", choice) for choice in choices(events, index)]
    return "".join(delta.get("content", delta.get("text", "")) for delta in deltas)
