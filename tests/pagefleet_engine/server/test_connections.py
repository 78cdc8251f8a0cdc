"""What clients do to their connections: read slowly or never, send slowly, flood, pipeline, offer upgrades."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pagefleet_api.metrics import Engine
from pagefleet_engine.api import connection, generation, listeners, open_files, outgoing, server, uploads
from pagefleet_engine.api.errors import BodyStalled
from pagefleet_engine.api.generation import Generation
from tests.pagefleet_engine.server.inside import Inside, engine, sse, stream_text, until
from tests.pagefleet_engine.server.test_draining import skip_grace

pytestmark = pytest.mark.asyncio(loop_scope="module")
H2C = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"


def request(headers: str = "", **fields: Any) -> bytes:
    body = json.dumps(fields).encode()
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


async def connected(running: Inside, sent: bytes, receive_buffer_bytes: int = 1 << 20) -> socket.socket:
    """A bare socket that has sent; nothing is read before it is asked."""
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", running.client.base_url.port))
    await loop.sock_sendall(client, sent)
    return client


async def read_to_end(client: socket.socket) -> bytes:
    received = bytearray()
    async with asyncio.timeout(5):
        while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 16):
            received += piece
    client.close()
    return bytes(received)


async def rejections(running: Inside, reason: str) -> float:
    return await running.metric(f'pagefleet_rejections_total{{model_name="tiny",reason="{reason}"}}')


def narrow(running: Inside) -> None:
    """New connections have small send buffers in the kernel."""
    running.server._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def unchunked(body: bytes) -> bytes:
    """A chunked body without its framing."""
    whole = bytearray()
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return bytes(whole)


@pytest.mark.parametrize("prompt", ["ab", "ab" * 100])
async def test_an_offered_upgrade_is_ignored_and_the_request_served(fast: Inside, prompt: str) -> None:
    asked = request(H2C, prompt=prompt, max_tokens=1)
    client = await connected(fast, asked[:250])
    await asyncio.sleep(0.02)
    await asyncio.get_running_loop().sock_sendall(client, asked[250:])
    answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 16), 5)
    assert answer.startswith(b"HTTP/1.1 200")
    await asyncio.get_running_loop().sock_sendall(client, request(prompt="x", max_tokens=1))
    answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 16), 5)
    assert answer.startswith(b"HTTP/1.1 200")
    client.close()


async def test_of_pipelined_requests_one_is_answered_and_the_connection_closed(fast: Inside) -> None:
    before = (await fast.requests_total())["length"]
    client = await connected(fast, request(prompt="ab", max_tokens=3) * 3)
    answer = await read_to_end(client)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert (await fast.requests_total())["length"] == before + 1


@pytest.mark.parametrize("streamed", [True, False])
async def test_hanging_up_on_pipelined_requests_frees_the_seat(tiny: Path, streamed: bool) -> None:
    async with engine(tiny, step_s=0.01) as running:
        asked = request(prompt="ab", max_tokens=400, ignore_eos=True, stream=streamed)
        client = await connected(running, asked * 2)
        await until(lambda: running.server.host.recorder.inter_token.count > 2)
        client.close()
        assert await until(running.idle) < 0.5
        assert (await running.requests_total())["abort"] == 1


@pytest.mark.parametrize(
    "head", [b"x: " + b"y" * 70_000 + b"\r\nz", b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 2500, b"x: " + b"y" * 400_000]
)
async def test_a_head_without_end_is_refused(fast: Inside, head: bytes) -> None:
    client = await connected(fast, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + head)
    before = await rejections(fast, "head_too_large")
    answer = await read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 431")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "head_too_large"
    assert await rejections(fast, "head_too_large") >= max(before, 1)


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"GET /v1/mod", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx: y"])
async def test_a_head_that_never_comes_whole_holds_no_connection(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    monkeypatch.setattr(listeners, "KEEP_ALIVE_S", 0.1)
    async with engine(tiny) as running:
        answer = await read_to_end(await connected(running, begun))
        assert await rejections(running, "head_stalled") == answer.startswith(b"HTTP/1.1 408")
    if begun.strip():
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "head_stalled"
    else:
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408")


async def test_a_line_break_after_a_body_ends_no_answer(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    async with engine(tiny, step_s=0.01) as running:
        asked = request("connection: close\r\n", prompt="ab", max_tokens=60, ignore_eos=True)
        answer = await read_to_end(await connected(running, asked + b"\r\n"))
    assert json.loads(answer.split(b"\r\n\r\n")[1])["usage"]["completion_tokens"] == 60


async def test_one_connection_too_many_is_told_so_and_the_next_finds_the_place_of_one_that_left(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pagefleet_engine")
    monkeypatch.setattr(open_files, "most_connections", lambda sequences: 5)
    async with engine(tiny) as running:
        held = [await connected(running, b"") for _ in range(5)]
        answer = await read_to_end(await connected(running, b""))
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "too_many_connections"
        assert (await running.admin.get("/healthz")).status_code == 200
        assert await rejections(running, "too_many_connections") == 1
        [told] = [line.__dict__ for line in caplog.records if line.message == "connection_refused"]
        assert (told["status"], told["code"]) == (503, "too_many_connections")

        async def served() -> bool:
            with contextlib.suppress(ConnectionError):
                return b" 200 " in await read_to_end(
                    await connected(running, request("connection: close\r\n", prompt="a"))
                )
            return False

        assert not await served()
        held.pop().close()
        await until(served)
        for client in held:
            client.close()


async def test_a_connection_on_which_nothing_is_under_way_is_looked_at_no_more(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = 0, outgoing.unacknowledged_bytes

    def counted(transport: asyncio.Transport) -> int:
        nonlocal looks
        looks += 1
        return look(transport)

    monkeypatch.setattr(connection, "unacknowledged_bytes", counted)
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    async with engine(tiny) as running:
        client = await connected(running, request(prompt="a"))
        assert b" 200 " in await asyncio.get_running_loop().sock_recv(client, 1 << 16)

        async def rests() -> bool:
            before = looks
            await asyncio.sleep(0.1)
            return looks == before > 0

        await until(rests)
        await asyncio.get_running_loop().sock_sendall(client, request("connection: close\r\n", prompt="a"))
        assert b" 200 " in await read_to_end(client), "and served as ever"


async def test_http_1_0_gets_a_stream_without_chunks_that_ends_with_the_connection(fast: Inside) -> None:
    asked = request(prompt="abc", max_tokens=3, stream=True).replace(b"HTTP/1.1", b"HTTP/1.0")
    head, _, body = (await read_to_end(await connected(fast, asked))).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert stream_text(sse(body.decode())) == "abc"
    assert body.endswith(b"data: [DONE]\n\n")


async def test_http_1_0_gets_whole_answers_by_their_length(fast: Inside) -> None:
    asked = request(prompt="abc", max_tokens=3).replace(b"HTTP/1.1", b"HTTP/1.0")
    head, _, body = (await read_to_end(await connected(fast, asked))).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head


@pytest.mark.parametrize("header", ["content-encoding: gzip", "transfer-encoding: gzip, chunked"])
async def test_a_compressed_body_is_refused_with_the_way_out(fast: Inside, header: str) -> None:
    body = b"3\r\nabc\r\n0\r\n\r\n" if "chunked" in header else b""
    asked = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}\r\n\r\n".encode() + body
    answer = await read_to_end(await connected(fast, asked))
    assert answer.startswith(b"HTTP/1.1 415")
    told = json.loads(answer.split(b"\r\n\r\n")[1])["error"]
    assert (told["param"], told["code"]) == (header.partition(":")[0], "unsupported_encoding")
    assert "without" in told["message"]


async def test_what_is_not_http_gets_400_in_the_shape_of_errors(fast: Inside) -> None:
    answer = await read_to_end(await connected(fast, b"nonsense\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "invalid_value"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/nothing"])
@pytest.mark.parametrize("pieces", [(b"zz\r\n",), (b"", b"zz\r\n"), (b"1\r\n{\r\n", b"1\r\nxx\r\n")])
async def test_a_broken_body_gets_400_in_the_shape_of_errors_and_holds_no_place(
    fast: Inside, path: str, pieces: tuple[bytes, ...]
) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    client = await connected(fast, head + pieces[0])
    for piece in pieces[1:]:
        await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(client, piece)
    answer = await read_to_end(client)
    if path == "/nothing" and len(pieces) > 1:  # answered before the body broke
        assert answer.startswith(b"HTTP/1.1 404")
        return
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 4") == 1
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "invalid_value"
    await until(fast.idle)
    assert fast.server.host.open_responses == 0


@pytest.mark.parametrize(("answers", "streamed"), [(4, False), (32, False), (32, True)])
async def test_a_drain_waits_for_clients_that_still_read_what_was_made(
    tiny: Path, answers: int, streamed: bool
) -> None:
    async with engine(tiny) as running:
        if answers > 4:  # else all of it is in the kernel at once
            narrow(running)
        fields: dict[str, Any] = {"prompt": "a", "max_tokens": 50, "logprobs": 5, "ignore_eos": True}
        client = await connected(running, request(**fields, n=answers, stream=streamed), 4096)
        await until(lambda: running.server.host.recorder.counters[Engine.REQUESTS, ("length",)] == answers)
        running.signal()
        skip_grace(running)
        await asyncio.sleep(0.2)
        assert not running.running.done()
        head, _, body = (await read_to_end(client)).partition(b"\r\n\r\n")
        if streamed:
            assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            assert f"content-length: {len(body)}".encode() in head
        assert await asyncio.wait_for(running.running, 2) == 0


async def test_clients_that_never_read_hold_no_seat_and_are_dropped_in_time(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(tiny, "--max-num-seqs", "1", "--max-queued-requests", "0") as running:
        narrow(running)
        fields: dict[str, Any] = {"prompt": "a", "max_tokens": 300, "logprobs": 20, "ignore_eos": True}
        client = await connected(running, request(**fields, stream=True), 4096)
        await until(lambda: running.server.host.recorder.inter_token.count == 299)
        assert await running.idle()
        assert (await running.requests_total())["length"] == 1
        assert (await running.complete("b", max_tokens=1)).status_code == 200
        assert running.server.host.open_responses == 1
        monkeypatch.setattr(connection, "STALL_S", 0.1)
        await until(lambda: running.server.host.open_responses == 0)
        client.close()


async def test_a_client_that_stops_reading_under_way_is_dropped_and_counted(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.1)
    async with engine(tiny, step_s=0.005) as running:
        narrow(running)
        fields: dict[str, Any] = {"prompt": "a", "max_tokens": 500, "logprobs": 20, "ignore_eos": True}
        client = await connected(running, request(**fields, stream=True), 4096)
        await until(lambda: running.server.host.open_responses == 1)
        await until(lambda: running.server.host.open_responses == 0)
        assert (await running.requests_total())["abort"] == 1
        assert await running.metric("pagefleet_client_disconnects_total") == 1
        client.close()


@contextlib.asynccontextmanager
async def others_stream(running: Inside) -> AsyncIterator[None]:
    """Another client's stream, from before the block on, goes on after it."""
    tokens = running.server.host.recorder.inter_token
    other = asyncio.create_task(running.complete("ab", max_tokens=480, ignore_eos=True, stream=True))
    before = tokens.count
    await until(lambda: tokens.count > before + 2)
    yield
    before = tokens.count
    await until(lambda: tokens.count > before + 2)
    assert not (other.done() or running.running.done())
    other.cancel()


async def test_a_client_that_begins_another_request_and_reads_nothing_costs_itself_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pagefleet_engine")
    monkeypatch.setattr(connection, "STALL_S", 0.1)
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    async with engine(tiny, step_s=0.01) as running:
        narrow(running)
        fields: dict[str, Any] = {"max_tokens": 1, "logprobs": 20, "n": 40}
        client = await connected(running, request(prompt="a", **fields), 4096)
        await until(lambda: running.server.host.recorder.counters[Engine.REQUESTS, ("length",)] == 40)
        async with others_stream(running):
            await asyncio.get_running_loop().sock_sendall(client, b"G")
            await until(lambda: "client_stalled" in caplog.messages)
        client.close()


@pytest.mark.parametrize("begun", [b"\r\n", b"GET /v1/mod", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx: y"])
async def test_a_client_that_vanishes_in_a_head_costs_itself_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begun: bytes
) -> None:
    caplog.set_level("INFO", "pagefleet_engine")
    monkeypatch.setattr(connection, "HEAD_S", 0.02)
    monkeypatch.setattr(connection, "STALL_S", 0.02)
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    async with engine(tiny, step_s=0.01) as running, others_stream(running):
        client = await connected(running, b"")
        place = client.getsockname()
        monkeypatch.setattr(
            connection, "unacknowledged_bytes", lambda transport: transport.get_extra_info("peername") == place
        )
        await asyncio.get_running_loop().sock_sendall(client, begun)
        await until(lambda: "client_stalled" in caplog.messages)
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 408")


async def test_a_fault_with_one_connection_is_logged_and_costs_it_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_TICK_S", 0.01)
    async with engine(tiny, step_s=0.01) as running, others_stream(running):
        client = await connected(running, b"")
        place = client.getsockname()

        def broken(transport: asyncio.Transport) -> int:
            if transport.get_extra_info("peername") == place:
                raise OSError("nobody thought of this")
            return 0

        monkeypatch.setattr(connection, "unacknowledged_bytes", broken)
        await asyncio.get_running_loop().sock_sendall(client, b"G")
        assert await read_to_end(client) == b""
    [told] = [line for line in caplog.records if line.message == "connection_failed"]
    assert "nobody thought of this" in str(told.exc_info)


async def test_a_client_that_pauses_gets_every_token_once_and_in_order(tiny: Path) -> None:
    prompt = "".join(chr(ord("a") + place % 26) for place in range(250))
    async with engine(tiny, step_s=0.001) as running:
        narrow(running)
        body = request("connection: close\r\n", prompt=prompt, max_tokens=250, logprobs=9, ignore_eos=True, stream=True)
        client = await connected(running, body, 4096)
        flights = running.server.host.core._flights
        await until(lambda: any(isinstance(each, Generation) and len(each._unread) > 3 for each in flights.values()))
        _, _, answer = (await read_to_end(client)).partition(b"\r\n\r\n")
        assert stream_text(sse(unchunked(answer).decode())) == prompt


async def test_an_answer_that_runs_too_far_ahead_of_its_reader_ends_with_an_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "UNREAD_LIMIT_BYTES", 50_000)
    async with engine(tiny, step_s=0.001) as running:
        narrow(running)
        fields: dict[str, Any] = {"prompt": "a", "max_tokens": 500, "logprobs": 20, "ignore_eos": True}
        client = await connected(running, request("connection: close\r\n", **fields, stream=True), 4096)
        await until(lambda: running.server.host.recorder.inter_token.count > 2)
        await until(running.idle)
        assert (await running.requests_total())["abort"] == 1
        assert b'"code":"read_too_slowly"' in await read_to_end(client)


async def test_an_upload_that_stalls_is_refused(fast: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "IDLE_S", 0.1)
    answer = await read_to_end(await connected(fast, request(prompt="abc")[:-2]))
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "body_stalled"
    assert fast.server.host.uploads.held_bytes == 0


async def test_the_end_may_come_at_the_moment_at_which_an_upload_has_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "IDLE_S", 0)
    reading = uploads.Uploads(lambda: False)
    piece = asyncio.create_task(reading.next_piece(asyncio.Event().wait))  # type: ignore[arg-type]
    for _ in range(2):
        await asyncio.sleep(0)
    reading.give_up()
    with pytest.raises(BodyStalled):
        await piece


async def test_an_upload_does_not_hold_the_end_of_the_process_and_is_told(tiny: Path) -> None:
    async with engine(tiny) as running:
        client = await connected(running, request(prompt="abc")[:-2])
        await until(lambda: running.server.host.uploads.held_bytes)
        running.signal()
        skip_grace(running)
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 503")
        assert await asyncio.wait_for(running.running, 2) == 0


async def test_a_refused_body_is_read_to_its_end_so_that_the_refusal_is_seen(tiny: Path) -> None:
    async with engine(tiny) as running:
        await running.admin.post("/drain")
        skip_grace(running)
        refused = await running.client.post("/v1/completions", content=b" " * (8 << 20))
        assert refused.status_code == 503


async def test_bodies_together_are_bounded(fast: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LIMIT_BYTES", 1000)
    first = await connected(fast, request(prompt="a" * 900, max_tokens=1)[:-2])
    await until(lambda: fast.server.host.uploads.held_bytes > 800)
    refused = await fast.complete("a" * 200, max_tokens=1)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    first.close()
    await until(lambda: fast.server.host.uploads.held_bytes == 0)
    assert (await fast.complete("a" * 200, max_tokens=1)).status_code == 200


async def test_a_request_in_the_tokenizer_is_told_of_the_end_and_does_not_hold_it(tiny: Path) -> None:
    stuck = threading.Event()
    async with engine(tiny) as running:
        for _ in range(4):
            running.server.host.text_threads.submit(stuck.wait)
        asked = asyncio.create_task(running.complete("abc"))
        await until(lambda: running.server.host.gate.open_sequences == 1)
        running.signal()
        running.signal()
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert await asyncio.wait_for(running.running, 2) == 0
        stuck.set()
