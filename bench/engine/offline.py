"""The works of an engine in this process: throughput, decode steps, prefill, static batches."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.engine import workloads
from bench.engine.inprocess import Engine, Session
from bench.engine.limits import Limits
from bench.engine.results import Measured, WorkFailed, median, significant
from bench.engine.workloads import Batch, Scale
from pagefleet_api.sizing import BLOCK_TOKENS

OFFLINE = ("kv-tokens", "prefill-32x2k", "decode-b1", "decode-b8", "decode-b64", "offline-mixed", "decode-b256")
STATIC = ("continuous-against-static",)
MEMORY_STRESS = "memory-stress"
NO_GOAL_MS = 0
"""Of time between tokens."""
_DECODE = re.compile(r"decode-b([1-9]\d*)")
_PREFILL = re.compile(r"prefill-([1-9]\d*)x([1-9]\d*)(k?)")
_UNIFORM = re.compile(r"offline-([1-9]\d*)x([1-9]\d*)x([1-9]\d*)")


def measures(work: str) -> bool:
    """Whether this module does."""
    named = any(pattern.fullmatch(work) for pattern in (_DECODE, _PREFILL, _UNIFORM))
    return named or work in {*OFFLINE, *STATIC, MEMORY_STRESS}


class Offline:
    """One loaded engine and how its works are measured; `repeats` None is the scale's.

    One session serves all works, since what it learns of the cost of steps it would know in a server too.
    """

    def __init__(self, engine: Engine, scale: Scale, limits: Limits | None, repeats: int | None) -> None:
        self.engine, self.scale, self.limits, self.repeats = engine, scale, limits, repeats
        self.session = engine.session()

    def work(self, name: str) -> Callable[[], Measured]:
        """What measures a work. Raises KeyError for an unknown one."""
        if decode := _DECODE.fullmatch(name):
            return lambda: self.decode(int(decode[1]))
        if prefill := _PREFILL.fullmatch(name):
            return lambda: self.prefill(int(prefill[1]), int(prefill[2]) * (1024 if prefill[3] else 1))
        if uniform := _UNIFORM.fullmatch(name):
            count, *tokens = (int(number) for number in uniform.groups())
            length, output = self.scale.cut(*tokens)
            batch = workloads.uniform(count, length, output, count + length, self.engine.vocab_size)
            return lambda: self.throughput(batch, f"{count} requests, {length} in, {output} out")
        return {
            "kv-tokens": self.kv_tokens,
            "offline-mixed": self.mixed,
            "continuous-against-static": self.static,
            MEMORY_STRESS: self.memory_stress,
        }[name]

    def kv_tokens(self) -> Measured:
        """Tokens that the KV pool holds."""
        limit = None if self.limits is None else self.limits.kv_tokens(self.engine.launch.gpu_memory_utilization)
        loaded = self.engine.loaded
        detail: dict[str, Any] = {
            "load_s": round(self.engine.load_s, 2),
            "idle_work_s": round(self.engine.idle_work_s, 2),
        }
        detail |= {"memory_bytes": loaded.memory_bytes}
        detail |= {"phase_s": {phase: round(seconds, 2) for phase, seconds in loaded.phase_s.items()}}
        return Measured(loaded.runner.num_blocks * BLOCK_TOKENS, "tokens", limit, detail)

    def mixed(self) -> Measured:
        """nano-vllm's offline workload; see `workloads.mixed`."""
        least, most = self.scale.mixed_tokens
        inputs = f"{self.scale.mixed_requests} requests, prompts and outputs uniform in {least}..{most}, seed 0"
        return self.throughput(workloads.mixed(self.scale, self.engine.vocab_size), inputs)

    def throughput(self, batch: Batch, inputs: str) -> Measured:
        """Generated tokens a second, all requests submitted at once."""
        seconds, runs = median(lambda: self.session.generate(batch).seconds, self.repeats or 1)
        tokens = sum(batch.outputs)
        limit = None if self.limits is None else self.limits.batch_tok_s(batch.lengths, batch.outputs)
        detail = {"inputs": inputs, "seconds": round(seconds, 3), "output_tokens": tokens}
        return Measured(tokens / seconds, "tok/s", limit, detail | {"runs_s": runs["runs"]})

    def decode(self, size: int) -> Measured:
        """Milliseconds a step: the time with many output tokens less that with one, over the steps between.

        As the peers were measured, and like theirs this engine's prompts then come in whole steps: with a goal for the
        time between tokens, early answers would be over before the last prompt is. `full_batch_ms` is the time between
        tokens while all decode.
        """
        scale = self.scale
        session = self.engine.session(replace(self.engine.launch, itl_goal_ms=NO_GOAL_MS))
        warm_up(session, scale, self.engine.vocab_size)
        full_batch_ms: list[float] = []
        one = workloads.uniform(size, scale.decode_context, 1, size, self.engine.vocab_size)
        many = one._replace(outputs=[1 + scale.decode_steps] * size)

        def step_ms() -> float:
            first_s = session.generate(one).seconds
            run = session.generate(many)
            full_batch_ms.append(run.full_batch_step_s * 1e3)
            return (run.seconds - first_s) / scale.decode_steps * 1e3

        value, runs = median(step_ms, self.repeats or scale.repeats)
        if value <= 0:
            raise WorkFailed(f"other work disturbed the runs: by their difference a step takes {runs['runs']} ms")
        step_s = None if self.limits is None else self.limits.decode_step_s(size, size * scale.decode_context)
        inputs = f"batch {size}, context {scale.decode_context}, {scale.decode_steps} steps, no inter-token goal"
        runs |= {"full_batch_ms": [significant(found) for found in full_batch_ms]}
        detail = {"inputs": inputs, "tok_s": round(size / value * 1e3), **runs}
        return Measured(value, "ms", None if step_s is None else step_s * 1e3, detail)

    def prefill(self, count: int, length: int) -> Measured:
        """Prompt tokens a second until all have their first token; prompts are cut to the window and the scale."""
        session, (length, _) = self.session, self.scale.cut(min(length, self.engine.loaded.max_model_len - 1), 1)
        batch = workloads.uniform(count, length, 1, count, self.engine.vocab_size)
        tokens = count * length
        value, runs = median(lambda: tokens / session.generate(batch).seconds, self.repeats or self.scale.repeats)
        limit = None if self.limits is None else tokens / self.limits.prefill_s(batch.lengths)
        return Measured(value, "tok/s", limit, {"inputs": f"{count} prompts of {length}", **runs})

    def memory_stress(self) -> Measured:
        """Tokens in the KV pool at once, every seat taken, steps as large as they get; all must be answered."""
        loaded, seats, output = self.engine.loaded, self.engine.launch.max_num_seqs, 16
        share = loaded.runner.num_blocks // seats - 1
        length = max(min(share * BLOCK_TOKENS, loaded.max_model_len) - output, 1)
        batch = workloads.uniform(seats, length, output, 41, self.engine.vocab_size)
        seconds = self.session.generate(batch).seconds
        detail = {"inputs": f"{seats} requests of {length} in, {output} out", "seconds": round(seconds, 2)}
        return Measured(seats * (length + output), "tokens", None, detail)

    def static(self) -> Measured:
        """Continuous batching against static batches of as many seats, on outputs of mixed length.

        A static batch lasts until its longest answer is there: its finished rows are computed to the end, and count
        for nothing. Prompts are not padded, which is to its advantage.
        """
        scale, seats = self.scale, self.scale.static_seats
        batch = workloads.skewed(scale, self.engine.vocab_size)
        session = self.engine.session(replace(self.engine.launch, max_num_seqs=seats))
        warm_up(session, scale, self.engine.vocab_size)
        continuous_s, runs = median(lambda: session.generate(batch).seconds, self.repeats or 1)
        static_s = 0.0
        for first in range(0, len(batch.prompts), seats):
            outputs = batch.outputs[first : first + seats]
            static = Batch(batch.prompts[first : first + seats], [max(outputs)] * len(outputs))
            static_s += session.generate(static).seconds
        inputs = f"{len(batch.prompts)} requests, {seats} seats, prompts {scale.static_mean}, outputs exponential"
        tokens = sum(batch.outputs)
        return Measured(
            static_s / continuous_s,
            "ratio",
            None,
            {
                "inputs": f"{inputs} with mean {scale.static_mean}, most {max(batch.outputs)}, seed 5",
                "continuous_tok_s": round(tokens / continuous_s),
                "static_tok_s": round(tokens / static_s),
                "runs_s": runs["runs"],
            },
        )


def warm_up(session: Session, scale: Scale, vocab_size: int) -> None:
    """A few requests, so that the first work does not pay for what is compiled at first use."""
    clients, length, output = scale.warm_up
    session.generate(workloads.uniform(clients, length, output, 1, vocab_size))
    if session.generate(workloads.uniform(1, 3, 8, 1, vocab_size)).tokens != 8:
        raise WorkFailed("the warm-up gave other than 8 tokens")
