"""The prefix cache in process: later turns of conversations, a cache that is too small, equal answers."""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench.engine import workloads
from bench.engine.answers import Greedy, GreedyFile
from bench.engine.inprocess import Engine, Run, Session
from bench.engine.offline import warm_up
from bench.engine.results import Measured, WorkFailed
from bench.engine.workloads import Batch, Scale
from pagefleet_api.sizing import BLOCK_TOKENS

CACHE = ("cold-warm-equal", "multi-turn-ttft-drop", "eviction-hits")
CONVERSATIONS = 8


@dataclass(frozen=True, slots=True)
class Caching:
    """One loaded engine; sessions with the cache and without are made for each work."""

    engine: Engine
    scale: Scale
    checked: GreedyFile

    def work(self, name: str) -> Callable[[], Measured]:
        """What measures a work. Raises KeyError for an unknown one."""
        return {
            "cold-warm-equal": self.cold_and_warm,
            "multi-turn-ttft-drop": self.multi_turn,
            "eviction-hits": self.eviction,
        }[name]

    def cold_and_warm(self) -> Measured:
        """Percent of greedy answers that are the same, token for token, with a cold cache and a warm one.

        A warm prompt is computed in other shapes, whose sums are rounded in another way; both answers go to the check.
        """
        session, batch = self._session(True), workloads.greedy(self.scale, self.engine.vocab_size)
        cold, warm = session.generate(batch, 0.0), session.generate(batch, 0.0)
        cached = sum(answer.cached_prompt_tokens for answer in warm.answers)
        if not cached or any(answer.cached_prompt_tokens for answer in cold.answers):
            raise WorkFailed("the second time, nothing came from the cache; or something did the first time")
        for name, run in (("cold", cold), ("warm", warm)):
            self.checked.add(greedy_answers(name, batch, run))
        pairs = zip(cold.answers, warm.answers, strict=True)
        equal = sum(one.token_ids == other.token_ids for one, other in pairs)
        detail = {"inputs": f"{len(batch.prompts)} greedy requests, twice", "equal": equal, "cached_tokens": cached}
        return Measured(100 * equal / len(batch.prompts), "percent", None, detail)

    def multi_turn(self) -> Measured:
        """Percent by which the cache lowers the median time to first token of second and later turns."""
        later = {cache: self._conversations(self._session(cache)) for cache in (False, True)}
        without_s, with_s = (statistics.median(times) for times in later.values())
        scale = self.scale
        inputs = f"{CONVERSATIONS} conversations at once, {scale.turns} turns, {scale.own_tokens} new tokens each"
        detail: dict[str, Any] = {
            "inputs": f"{inputs} after the first of {scale.greedy_prompt}, {scale.greedy_answer} out"
        }
        detail |= {"ttft_off_ms": round(without_s * 1e3, 2), "ttft_on_ms": round(with_s * 1e3, 2)}
        return Measured(100 * (1 - with_s / without_s), "percent", None, detail)

    def _conversations(self, session: Session) -> list[float]:
        """Seconds to first token of all turns but the first."""
        scale, vocab_size = self.scale, self.engine.vocab_size
        prompts = workloads.uniform(CONVERSATIONS, scale.greedy_prompt, 1, 21, vocab_size).prompts
        times: list[float] = []
        for turn in range(scale.turns):
            run = session.generate(Batch(prompts, [scale.greedy_answer] * len(prompts)), 0.0)
            times += run.first_token_s if turn else []
            new = workloads.uniform(CONVERSATIONS, scale.own_tokens, 1, 22 + turn, vocab_size).prompts
            prompts = [
                (*prompt, *answer.token_ids, *more)
                for prompt, answer, more in zip(prompts, run.answers, new, strict=True)
            ]
        return times

    def eviction(self) -> Measured:
        """Percent of prompt tokens found, where the prompts in use are twice what the pool holds.

        Prompts are visited at random; a pool of least recently used blocks then finds about half.
        """
        scale = self.scale
        length = 2 * scale.eviction_blocks * BLOCK_TOKENS // scale.eviction_prompts
        known = workloads.uniform(scale.eviction_prompts, length, 1, 31, self.engine.vocab_size).prompts
        source, seats = random.Random(32), max(scale.eviction_prompts // 8, 1)
        visits = [source.choice(known) for _ in range(scale.eviction_visits)]
        seconds, hits, latest = {}, 0, None
        for cache in (False, True):
            session = self._session(cache, scale.eviction_blocks)
            seconds[cache] = 0.0
            for first in range(0, len(visits), seats):
                batch = Batch(visits[first : first + seats], [8] * len(visits[first : first + seats]))
                run = session.generate(batch, 0.0)
                seconds[cache] += run.seconds
                hits += sum(answer.cached_prompt_tokens for answer in run.answers)
                latest = batch, run
        if latest is not None:
            self.checked.add(greedy_answers("after evictions", *latest))
        inputs = f"pool {scale.eviction_blocks} blocks, {len(known)} prompts of {length}, {len(visits)} visits"
        detail = {"inputs": inputs, "seconds_off": round(seconds[False], 3), "seconds_on": round(seconds[True], 3)}
        return Measured(100 * hits / (len(visits) * length), "percent", None, detail)

    def _session(self, cache: bool, num_blocks: int | None = None) -> Session:
        session = self.engine.session(replace(self.engine.launch, prefix_cache=cache), num_blocks)
        warm_up(session, self.scale, self.engine.vocab_size)
        return session


def greedy_answers(origin: str, batch: Batch, run: Run) -> list[Greedy]:
    """A greedy batch for the check."""
    pairs = zip(batch.prompts, run.answers, strict=True)
    return [Greedy(origin, prompt, tuple(answer.token_ids)) for prompt, answer in pairs]
