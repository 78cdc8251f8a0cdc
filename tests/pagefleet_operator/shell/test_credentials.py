"""The operator's own credentials: read again after a rotation, and never sent through a proxy."""

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import certifi
import kopf
import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio.config import incluster_config

from pagefleet_operator.apiserver import cluster
from pagefleet_operator.apiserver.cache import WatchCache
from pagefleet_operator.apiserver.watch import Watch
from pagefleet_operator.kinds import WATCHED, Kind
from pagefleet_operator.settings import Settings, Timings
from tests.pagefleet_operator.shell.keys import Keys
from tests.pagefleet_operator.shell.test_watch import Lister


async def test_the_token_file_is_read_again_after_its_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, moment = tmp_path / "token", dt.datetime(2026, 1, 1)
    token.write_text("first")
    clock = SimpleNamespace(now=lambda: moment)
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=clock, timedelta=dt.timedelta))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", certifi.where())
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    client = await cluster.connect()
    try:
        for text in ("first", "second"):
            token.write_text(text)
            moment += dt.timedelta(minutes=2)
            session = await cluster.watch_session(client, [])
            await session.close()
            assert session.headers["authorization"] == f"bearer {text}"
            assert not session.trust_env
        assert client.configuration.proxy is None
    finally:
        await client.close()


_KINDS = (*WATCHED.values(), Kind("Namespace", "v1", "namespaces"))
"""kopf does not begin where there are no namespaces."""


class Server:
    """An API server with nothing in it, which takes one token only."""

    def __init__(self) -> None:
        self.token = "first"
        self.streams: list[str] = []
        self.address = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("authorization") != f"bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if request.query.get("watch") != "true":
            return web.json_response(self._document(request.path))
        self.streams.append(self.token)
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(0.1)  # then the stream ends, as a real one does after a while
        return response

    def _document(self, path: str) -> dict[str, object]:
        """Discovery, or a listing of nothing."""
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            groups = {
                kind.api_version.partition("/")[0]: kind.api_version for kind in _KINDS if "/" in kind.api_version
            }
            versions = {
                name: [{"groupVersion": whole, "version": whole.partition("/")[2]}] for name, whole in groups.items()
            }
            return {"groups": [{"name": n, "versions": v, "preferredVersion": v[0]} for n, v in versions.items()]}
        if any(path == kind.path(None) for kind in _KINDS):
            return {"metadata": {"resourceVersion": "1"}, "items": []}
        here = [kind for kind in _KINDS if kind.path(None).rpartition("/")[0] == path]
        shared = {"singularName": "", "verbs": ["list", "watch", "get", "patch"], "namespaced": True}
        return {"resources": [{"name": kind.plural, "kind": kind.name, **shared} for kind in here]}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.address = site.name
    yield made
    await runner.cleanup()


async def test_streams_go_on_with_the_new_token_when_the_old_one_is_refused(server: Server) -> None:
    timings = Timings(watch_retry_cap_s=0.2)
    watch = Watch(Settings(timings=timings), WatchCache(), Lister(), Keys())
    stop = asyncio.Event()

    async def login(trace: aiohttp.TraceConfig) -> kopf.AiohttpSession:
        session = aiohttp.ClientSession(headers={"authorization": f"bearer {server.token}"}, trace_configs=[trace])
        return kopf.AiohttpSession(server=server.address, aiohttp_session=session)

    running = asyncio.create_task(watch.run(login, stop, lambda: None))
    try:
        async with asyncio.timeout(6):
            for token in ("first", "second"):
                server.token = token
                while server.streams.count(token) < 2 * len(WATCHED):
                    await asyncio.sleep(0.02)
                    assert not running.done(), json.dumps(server.streams)
    finally:
        stop.set()
        await running
