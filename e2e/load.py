"""A closed-loop load client for an OpenAI server: some clients, each with one request open at a time.

    python -m e2e.load --url http://10.96.3.4/v1 --model smollm2 --clients 20 --seconds 30

It is as strict as a user would be: an answer counts only when all of it came, in order, with its end. It tries again
only where any OpenAI client may: nothing of the answer was there yet, and the connection failed or the server
answered 503 with `Retry-After`.
"""

import argparse
import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from e2e.answers import Answer, Ask, Summary, summary
from e2e.exchange import Exchange, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load before it runs.

    `ask` makes the n-th request. The load ends after `requests` requests or when `seconds` are over, whichever comes
    first (with neither, when it is told to), and answers that are on their way are waited for. Connections are new
    for each request, as kube-proxy chooses a pod for a connection, unless `keep_connections`.
    """

    target: Target
    ask: Callable[[int], Ask]
    clients: int
    requests: int | None = None
    seconds: float | None = None
    keep_connections: bool = False
    api_key: str | None = None


class Load:
    """A load that runs in a thread of its own; every method may be called from any thread."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._answers: list[Answer] = []
        self._open: dict[int, Exchange] = {}
        self._next = 0
        self._ending = False
        self.started_s = time.monotonic()
        """Zero of the answers' times, of `time.monotonic`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._clients: list[asyncio.Task[None]] = []

    @classmethod
    def start(cls, plan: LoadPlan) -> "Load":
        load = cls(plan)
        load._thread.start()
        return load

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    @property
    def answers(self) -> list[Answer]:
        """Finished requests so far, in the order of their end."""
        return list(self._answers)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def open_requests(self) -> dict[int, int]:
        """How many tokens are still to come, at most, for each open request by its number."""
        return {number: exchange.tokens_to_go for number, exchange in list(self._open.items())}

    def end(self) -> None:
        """Start no further request; open ones go on."""
        self._ending = True

    def wait(self, stalled_s: float = 60.0) -> list[Answer]:
        """Wait for the load's end (a load without an end of its own ends now) and give every answer.

        How long that takes is the machine's business, as long as something comes.

        Raises:
            TimeoutError: for `stalled_s` no token has come, and no request has ended or begun.
        """
        if self._plan.requests is None and self._plan.seconds is None:
            self.end()
        seen, since_s = self._progress(), time.monotonic()
        while self._thread.is_alive():
            self._thread.join(min(stalled_s, 0.5))
            now = self._progress()
            if now != seen:
                seen, since_s = now, time.monotonic()
            elif self._thread.is_alive() and time.monotonic() - since_s >= stalled_s:
                raise TimeoutError(f"nothing came for {stalled_s:g} s; open, with tokens to go: {self.open_requests()}")
        return self.answers

    def _progress(self) -> tuple[int, dict[int, int]]:
        return len(self._answers), self.open_requests()

    def cancel(self) -> None:
        """Hang up on everything that is open."""
        self._ending = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hang_up)
        self._thread.join(10)

    def _hang_up(self) -> None:
        for client in self._clients:
            client.cancel()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._drive())
        finally:
            self._loop.close()

    async def _drive(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=not self._plan.keep_connections)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        key = self._plan.api_key
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
            self._clients = [asyncio.create_task(self._client(session)) for _ in range(self._plan.clients)]
            await asyncio.gather(*self._clients, return_exceptions=True)

    def _now_s(self) -> float:
        return time.monotonic() - self.started_s

    def _may_start(self) -> bool:
        plan = self._plan
        in_number = plan.requests is None or self._next < plan.requests
        return not self._ending and in_number and (plan.seconds is None or self._now_s() < plan.seconds)

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while self._may_start():
            number, self._next = self._next, self._next + 1
            exchange = Exchange(self._plan.target, number, self._plan.ask(number), self._now_s)
            self._open[number] = exchange
            try:
                await exchange.run(session, self._answers.append)
            finally:
                del self._open[number]


_TOPICS = ("rivers", "bridges", "bread", "comets", "chess", "violins", "glaciers", "lighthouses", "bees", "maps")


def numbered(max_tokens: int) -> Callable[[int], Ask]:
    """Short prompts that differ from their first word on, so that no answer lives on another one's prefix."""
    return lambda number: Ask(f"{number}: tell me about {_TOPICS[number % len(_TOPICS)]}.", max_tokens)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 1 when a request was not answered in full."""
    parser = argparse.ArgumentParser(prog="e2e.load", description="Closed-loop load for an OpenAI server.")
    parser.add_argument("--url", required=True, help="the API, with its /v1")
    parser.add_argument("--model", required=True, help="the served model's name")
    parser.add_argument("--clients", type=int, default=20, help="requests open at a time (default 20)")
    parser.add_argument("--requests", type=int, help="end after so many requests")
    parser.add_argument("--seconds", type=float, help="start no request after so many seconds")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of each answer (default 64)")
    parser.add_argument("--whole", action="store_true", help="do not stream")
    parser.add_argument("--keep", action="store_true", help="keep connections")
    parser.add_argument("--api-key", help="bearer token")
    parser.add_argument("--json", type=Path, help="write the summary here as JSON")
    given = parser.parse_args(argv)
    if given.requests is None and given.seconds is None:
        parser.error("--requests or --seconds is required: a load must end")
    for flag, number in (("--clients", given.clients), ("--requests", given.requests), ("--seconds", given.seconds)):
        if number is not None and not 0 < number < float("inf"):
            parser.error(f"{flag} is {number}: give a number above 0")
    plan = LoadPlan(
        target=Target(url=lambda: str(given.url).rstrip("/"), model=given.model, stream=not given.whole),
        ask=numbered(given.max_tokens),
        clients=given.clients,
        requests=given.requests,
        seconds=given.seconds,
        keep_connections=given.keep,
        api_key=given.api_key,
    )
    result = summary(_finish(plan))
    _print(result, given.json)
    return 0 if result.answered == result.requests else 1


def _finish(plan: LoadPlan) -> list[Answer]:
    with Load.start(plan) as load:
        while load.running:
            time.sleep(0.1)
    return load.answers


def _print(result: Summary, path: Path | None) -> None:
    print(result)
    if path is not None:
        path.write_text(json.dumps(json.loads(result.json()), indent=2) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
