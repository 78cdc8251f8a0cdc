"""The works over HTTP: closed loops, a long prompt among streams, shared prefixes, the start."""

import json
import random
import re
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.engine import client, workloads
from bench.engine.answers import Greedy, GreedyFile
from bench.engine.client import Load, Record
from bench.engine.limits import Limits
from bench.engine.results import Measured, WorkFailed
from bench.engine.server import CpuSeconds, Server
from bench.engine.workloads import IDS, Batch, Scale

ONLINE = (
    "online-c1-1024x128",
    "online-c64-1024x128",
    "long-prompt-itl-p99",
    "online-c256-1024x128",
    "online-c64-1024x1024",
    "online-c256-1024x1024",
)
_LOOP = re.compile(r"online-c([1-9]\d*)-([1-9]\d*)x([1-9]\d*)")
_LEAST_REQUESTS = 16
_CPU_TOKENS = 20_000
"""API processor time is given for so many tokens: what one second brings at best."""
Floats = npt.NDArray[np.float64]


def percentiles(values: "Floats | Sequence[float]", *at: int) -> list[float]:
    """Rounded to a hundredth."""
    return [round(float(found), 2) for found in np.percentile(np.asarray(values), at)]


def good(records: Sequence[Record]) -> list[Record]:
    """All of them; raises WorkFailed when one failed, or one has no text."""
    failed = [record.failure for record in records if record.failure is not None]
    if failed or not all(record.times_s for record in records):
        raise WorkFailed(f"{len(failed)} of {len(records)} requests failed: {failed[:2]}")
    return list(records)


def gaps_ms(records: Sequence[Record]) -> Floats:
    """Between every two pieces of each request."""
    return np.concatenate([np.diff(record.times_s) for record in records]) * 1e3


def seconds(records: Sequence[Record]) -> float:
    """From the first request's sending to the last piece of text."""
    return max(record.times_s[-1] for record in records) - min(record.sent_s for record in records)


def latencies(records: Sequence[Record]) -> dict[str, Any]:
    """Times to first token and between tokens, in milliseconds."""
    first = [(record.times_s[0] - record.sent_s) * 1e3 for record in records]
    gaps = gaps_ms(records)
    ttft, itl = percentiles(first, 50, 99), percentiles(gaps, 50, 99, 100) if len(gaps) else [None] * 3
    names = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "itl_max_ms")
    return dict(zip(names, (*ttft, *itl), strict=True))


def measures(work: str) -> bool:
    """Whether this module does."""
    return work in ONLINE or _LOOP.fullmatch(work) is not None


@dataclass(frozen=True, slots=True)
class Online:
    """One started engine and how its works are measured."""

    server: Server
    scale: Scale
    limits: Limits | None
    vocab_size: int

    def work(self, name: str) -> Callable[[], Measured]:
        """What measures a work. Raises KeyError for an unknown one."""
        if loop := _LOOP.fullmatch(name):
            return lambda: self.loop(int(loop[1]), int(loop[2]), int(loop[3]))
        return {"long-prompt-itl-p99": self.long_prompt}[name]

    def first_token(self) -> Record:
        """One short answer, as a user's first."""
        batch = Batch([tuple([min(300, self.vocab_size - 1)] * 32)], [2])
        return good(client.drive(self.server.url, batch, 1).records)[0]

    def warm_up(self) -> None:
        """The load that the peers got before they were measured."""
        clients, length, output = self.scale.warm_up
        batch = workloads.uniform(max(_LEAST_REQUESTS, 4 * clients), length, output, 1, self.vocab_size)
        good(client.drive(self.server.url, batch, clients).records)

    def loop(self, clients: int, length: int, output: int) -> Measured:
        """Generated tokens a second of a closed loop."""
        length, output = self.scale.cut(length, output)
        count = max(_LEAST_REQUESTS, self.scale.rounds * clients)
        batch = workloads.uniform(count, length, output, 1000 + clients + output, self.vocab_size)
        load, used = self._measured(batch, clients)
        records = good(load.records)
        spent_s, tokens = seconds(records), count * output
        limit = None if self.limits is None else self.limits.batch_tok_s([length] * clients, [output] * clients)
        detail = {
            "inputs": f"{clients} clients, {count} requests, {length} in, {output} out",
            "seconds": round(spent_s, 2),
            **latencies(records),
            "tokens_per_chunk": round(tokens / sum(len(record.times_s) for record in records), 3),
            "client_cpu_share": round(load.client_cpu_s / spent_s, 2),
            "api_cpu_s_per_20k_tokens": round(used.api / tokens * _CPU_TOKENS, 3),
            "api_cpu_share": round(used.api / spent_s, 2),
            "core_cpu_share": round(used.core / spent_s, 2),
            "failures": 0,
        }
        return Measured(tokens / spent_s, "tok/s", limit, detail)

    def groups(self, clients: int) -> dict[str, Any]:
        """Prompts in groups that share a prefix: latencies, total seconds, share of prompt tokens found."""
        batch = workloads.groups(self.scale, 1000 + clients, self.vocab_size)
        before = [self.server.counter(name) for name in ("prefix_cache_hits", "prefix_cache_queries")]
        records = good(self._measured(batch, clients)[0].records)
        after = [self.server.counter(name) for name in ("prefix_cache_hits", "prefix_cache_queries")]
        hits, queries = (late - early for early, late in zip(before, after, strict=True))
        share = round(100 * hits / queries, 1) if queries else None
        return {**latencies(records), "seconds": round(seconds(records), 3), "hit_percent": share}

    def long_prompt(self) -> Measured:
        """99th percentile of the streams' gaps while a long prompt is computed, sent three times."""
        scale, source = self.scale, random.Random(1003)
        most = min(IDS, self.vocab_size)
        streams = [workloads.ids(source, scale.stream_prompt, most) for _ in range(scale.streams)]
        long = [workloads.ids(source, scale.long_prompt, most) for _ in range(3)]
        found = client.among(
            self.server.url,
            Batch(streams, [scale.stream_answer] * scale.streams),
            Batch(long, [1] * len(long)),
            scale.calm_s,
        )
        windows = gap_windows(good(found.streams), good(found.intruders))
        if windows["during"] is None:
            raise WorkFailed("the streams had ended before the long prompt was sent")
        detail = {
            "inputs": f"{scale.long_prompt} tokens among {scale.streams} streams, "
            f"{scale.stream_prompt} in, {scale.stream_answer} out",
            "ttft_ms": [round((record.times_s[0] - record.sent_s) * 1e3) for record in found.intruders],
            **{f"itl_{name}_ms": window for name, window in windows.items()},
        }
        return Measured(windows["during"]["p99"], "ms", None, detail)

    def greedy(self, texts: dict[str, int], origin: str, checked: GreedyFile) -> None:
        """Greedy answers for the check; `texts` gives the id of a token by its text."""
        batch = workloads.greedy(self.scale, self.vocab_size)

        def answered(prompt: workloads.Prompt, output: int) -> Greedy:
            return Greedy(origin, prompt, self._greedy_ids(prompt, output, texts))

        with ThreadPoolExecutor(len(batch.prompts)) as pool:
            checked.add(list(pool.map(answered, batch.prompts, batch.outputs)))

    def _greedy_ids(self, prompt: workloads.Prompt, output: int, texts: dict[str, int]) -> tuple[int, ...]:
        asked = {"model": "peer", "prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.server.url}/v1/completions",
            json.dumps(asked | {"logprobs": 0}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            tokens = json.loads(answer.read())["choices"][0]["logprobs"]["tokens"]
        if len(tokens) != output:
            raise WorkFailed(f"{len(tokens)} tokens, not {output}")
        return tuple(texts[token] for token in tokens)

    def _measured(self, batch: Batch, clients: int) -> tuple[Load, CpuSeconds]:
        before = self.server.cpu_s()
        load = client.drive(self.server.url, batch, clients)
        after = self.server.cpu_s()
        return load, CpuSeconds(after.api - before.api, after.core - before.core)


def gap_windows(streams: Sequence[Record], intruders: Sequence[Record]) -> dict[str, dict[str, float] | None]:
    """Gaps of the streams before the first intruder, while one is computed, and after the last; None for no gaps.

    Only while all streams run; `intruders` that came later than that are left out.
    """
    begun, ended = max(record.times_s[0] for record in streams), min(record.times_s[-1] for record in streams)
    ends = np.concatenate([record.times_s[1:] for record in streams])
    gaps = gaps_ms(streams)
    inside = [
        (ends >= record.sent_s) & (ends - gaps / 1e3 <= record.times_s[-1])
        for record in intruders
        if record.times_s[-1] < ended
    ]
    settle_s = 0.3
    windows = {
        "before": (ends > begun + settle_s) & (ends < intruders[0].sent_s),
        "during": np.logical_or.reduce(inside) if inside else np.zeros(len(ends), bool),
        "after": (ends > intruders[-1].times_s[-1] + settle_s) & (ends < ended),
    }
    return {name: _window(gaps[where]) for name, where in windows.items()}


def _window(gaps: Floats) -> dict[str, float] | None:
    if not len(gaps):
        return None
    p50, p99, most = percentiles(gaps, 50, 99, 100)
    return {"p50": p50, "p99": p99, "max": most, "gaps": len(gaps)}
