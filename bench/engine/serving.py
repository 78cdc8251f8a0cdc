"""The works that need servers: starts, everything over HTTP, prefixes with the cache and without."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.engine import facts, online, progress
from bench.engine.answers import GreedyFile
from bench.engine.limits import Limits
from bench.engine.results import Measured, Results
from bench.engine.server import Server
from bench.engine.workloads import Scale
from pagefleet_api.launch import Launch

START, COLD_START = "start", "start-cold"
PREFIX_DROP, PREFIX_AT_ONCE = "prefix-ttft-drop", "prefix-at-once"
PREFIXES = (PREFIX_DROP, PREFIX_AT_ONCE)
START_WORKS = (START, *online.ONLINE)
START_LIMIT_S = {"llama-8b-shape": 4.0}
"""Reading the weights once and importing what cannot be left out, estimated."""


def needs_server(work: str) -> bool:
    """Whether this module measures it."""
    return work in {START, COLD_START, *PREFIXES} or online.measures(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Starts servers of one launch, one after the other; `texts` gives the ids of tokens by their text."""

    launch: Launch
    model: str
    scale: Scale
    limits: Limits | None
    vocab_size: int
    results: Results
    greedy: GreedyFile
    texts: Callable[[], dict[str, int]]
    logs: Path

    def run(self, works: Sequence[str]) -> None:
        """Measure those of `works` that need a server; each that cannot be measured gets a row that says why."""
        if COLD_START in works:
            self.results.measure(COLD_START, self._cold_start)
        rest = [work for work in works if needs_server(work) and work != COLD_START]
        if not rest:
            return
        found: dict[bool, dict[int, Any]] = {}
        for cache in (True, False) if any(work in PREFIXES for work in rest) else (True,):
            try:
                self._serve([work for work in rest if cache or work in {START, *PREFIXES}], cache, found)
            except Exception as error:  # a server that does not start, or dies, ends its own works alone
                told = {row["work"] for row in self.results.rows()}
                for work in [work for work in rest if work not in told] or ["serving stage"]:
                    self.results.fail(work, error)
                return
        for work in rest:
            if work in PREFIXES:
                self.results.measure(work, lambda work=work: self._prefix(work, found))  # type: ignore[misc]

    def _serve(self, works: Sequence[str], cache: bool, found: dict[bool, dict[int, Any]]) -> None:
        """One server and its works."""
        triton_cache = facts.triton_cache() if self.launch.device == "cuda" else None
        state = f"prefix cache {'on' if cache else 'off'}"
        with ExitStack() as stack:
            with progress.telling(f"starting a server, {state}"):
                server = stack.enter_context(self._server(f"server-cache-{'on' if cache else 'off'}", cache))
                start = self._start_of(server, triton_cache)
            loaded = online.Online(server, self.scale, self.limits, self.vocab_size)
            if START in works:  # of both servers: on a fresh machine the first is cold, the second warm
                self.results.add(START, start)
            with progress.telling("warming the server up"):
                server.wait_until_idle()
                loaded.warm_up()
            for work in works:
                if work != START and work not in PREFIXES:
                    self.results.measure(work, loaded.work(work))
            if any(work in PREFIXES for work in works):
                with progress.telling(f"groups of prompts, {state}"):
                    found[cache] = {clients: loaded.groups(clients) for clients in self.scale.group_clients}
            if cache:
                with progress.telling("greedy answers for the check"):
                    loaded.greedy(self.texts(), "over HTTP", self.greedy)

    def _server(self, name: str, cache: bool = True, environment: dict[str, str] | None = None) -> Server:
        return Server(replace(self.launch, prefix_cache=cache).argv(), self.logs / f"{name}.log", environment)

    def _cold_start(self) -> Measured:
        """A start with nothing in Triton's cache, as on a fresh machine; kernels of an image are there if named."""
        with (
            tempfile.TemporaryDirectory() as empty,
            self._server(COLD_START, environment={"TRITON_CACHE_DIR": empty}) as server,
        ):
            return self._start_of(server, facts.empty_cache())

    def _start_of(self, server: Server, triton_cache: str | None) -> Measured:
        online.Online(server, self.scale, self.limits, self.vocab_size).first_token()
        value_s = time.perf_counter() - server.began_s
        detail = {"inputs": "process start to a first token over HTTP", "ready_s": round(server.ready_s, 2)}
        limit_s = None if self.limits is None else START_LIMIT_S.get(self.model)
        return Measured(value_s, "s", limit_s, {**detail, "triton_cache": triton_cache})

    def _prefix(self, work: str, found: dict[bool, dict[int, Any]]) -> Measured:
        """Percent that the cache takes off the median time to first token; seconds for all at once with it."""
        scale, (few, all_at_once) = self.scale, self.scale.group_clients
        clients = few if work == PREFIX_DROP else all_at_once
        on, off = found[True][clients], found[False][clients]
        inputs = f"{scale.group_count} groups of {scale.group_size}, {scale.shared_tokens} shared + {scale.own_tokens}"
        detail = {"inputs": f"{inputs} own, {scale.group_answer} out, {clients} clients", "on": on, "off": off}
        if work == PREFIX_AT_ONCE:
            return Measured(on["seconds"], "s", None, detail)
        return Measured(100 * (1 - on["ttft_p50_ms"] / off["ttft_p50_ms"]), "percent", None, detail)
