"""Streamed completions of an OpenAI server in a closed loop, from processes of their own.

So the clients share no interpreter with the server and take little of its cores. A gap is the time between two
streamed pieces of text of one request. The same client measured the peers.
"""

import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp

from bench.engine import children
from bench.engine.workloads import Batch, Prompt

CLIENTS_PER_PROCESS = 32
TEMPERATURE = 0.6
_TIMEOUT_S = 400
_READ_BYTES = 1 << 20
_TEXT, _NO_TEXT, _USAGE, _DONE = b'"choices":[{', b'"text":""', b'"usage":{', b"data: [DONE]"


class Record(NamedTuple):
    """One request: when it was sent, when each piece of text came, why it failed; seconds of one machine's clock."""

    sent_s: float
    times_s: list[float]
    failure: str | None


class Load(NamedTuple):
    """All records of a load, and the CPU seconds of its busiest client process."""

    records: list[Record]
    client_cpu_s: float


def body(prompt: Prompt, output: int, temperature: float = TEMPERATURE) -> bytes:
    """A streamed request for exactly `output` tokens."""
    request = {"model": "peer", "prompt": prompt, "max_tokens": output, "temperature": temperature}
    request |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(request).encode()


async def ask(session: aiohttp.ClientSession, url: str, data: bytes, output: int) -> Record:
    """Send one request and read its answer to the end."""
    sent_s, times_s = time.perf_counter(), list[float]()
    try:
        async with session.post(f"{url}/v1/completions", data=data) as answer:
            if answer.status != 200:
                return Record(sent_s, times_s, f"HTTP {answer.status}: {(await answer.text())[:200]}")
            tokens = await _read(answer, times_s)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return Record(sent_s, times_s, f"{type(error).__name__}: {error}"[:200])
    return Record(sent_s, times_s, None if tokens == output else f"{tokens} tokens, not {output}")


async def _read(answer: aiohttp.ClientResponse, times_s: list[float]) -> int | None:
    """Note the time of each piece; the answer's tokens by its usage. Raises ValueError for what is no chunk."""
    tokens, rest = None, b""
    while chunk := await answer.content.readany():
        now_s = time.perf_counter()
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            if _TEXT in event:
                if _NO_TEXT not in event:
                    times_s.append(now_s)
            elif _USAGE in event:
                tokens = json.loads(event[5:])["usage"]["completion_tokens"]
            elif event != _DONE:
                raise ValueError(event[:200].decode(errors="replace"))
    return tokens


def open_session() -> aiohttp.ClientSession:
    """As many connections as there are clients."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        headers={"content-type": "application/json"},
        read_bufsize=_READ_BYTES,
    )


async def _closed_loop(url: str, requests: Sequence[tuple[bytes, int]], clients: int) -> list[Record]:
    waiting, records = list(reversed(requests)), list[Record]()

    async def client(session: aiohttp.ClientSession) -> None:
        while waiting:
            data, output = waiting.pop()
            records.append(await ask(session, url, data, output))

    async with open_session() as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return records


def _work(url: str, requests: Sequence[tuple[bytes, int]], clients: int, barrier: Any, answers: Any) -> None:
    barrier.wait()
    records = asyncio.run(_closed_loop(url, requests, clients))
    used = resource.getrusage(resource.RUSAGE_SELF)
    answers.put((records, used.ru_utime + used.ru_stime))


def drive(url: str, batch: Batch, clients: int) -> Load:
    """Send all of `batch` with `clients` requests open at any time."""
    count = max(1, clients // CLIENTS_PER_PROCESS)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(count), context.Queue()
    requests = [(body(prompt, output), output) for prompt, output in zip(batch.prompts, batch.outputs, strict=True)]
    processes = [
        context.Process(
            target=_work,
            args=(url, requests[index::count], clients // count, barrier, answers),
            name=f"bench-client-{index}",
            daemon=True,
        )
        for index in range(count)
    ]
    for process in processes:
        children.start(process)
    found = [answers.get(timeout=_TIMEOUT_S + 60) for _ in processes]
    for process in processes:
        process.join(10)
    return Load([record for records, _ in found for record in records], max(cpu_s for _, cpu_s in found))


class Among(NamedTuple):
    """Streams, and the long prompts that were sent while they ran."""

    streams: list[Record]
    intruders: list[Record]


async def _among(url: str, streams: Batch, intruders: Batch, calm_s: float) -> Among:
    async with open_session() as session:
        pairs = zip(streams.prompts, streams.outputs, strict=True)
        running = [asyncio.create_task(ask(session, url, body(*pair), pair[1])) for pair in pairs]
        await asyncio.sleep(calm_s)
        seen = []
        for prompt, output in zip(intruders.prompts, intruders.outputs, strict=True):
            seen.append(await ask(session, url, body(prompt, output), output))
            await asyncio.sleep(calm_s / 3)
        return Among(list(await asyncio.gather(*running)), seen)


def _work_among(url: str, streams: Batch, intruders: Batch, calm_s: float, answers: Any) -> None:
    answers.put(asyncio.run(_among(url, streams, intruders, calm_s)))


def among(url: str, streams: Batch, intruders: Batch, calm_s: float) -> Among:
    """Start all streams, and after `calm_s` seconds send the intruders one after the other."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    arguments = (url, streams, intruders, calm_s, answers)
    process = context.Process(target=_work_among, args=arguments, name="bench-among", daemon=True)
    children.start(process)
    found: Among = answers.get(timeout=_TIMEOUT_S + 60)
    process.join(10)
    return found
