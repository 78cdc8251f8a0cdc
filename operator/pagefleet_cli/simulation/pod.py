"""One engine pod as a fluid: between two events its decodes advance at one rate, and its prompts at another.

Every running answer gets one token a step, so one counter of steps stands for all of them: an answer that joins at
step v with n tokens to come is over at step v + n. An event costs the logarithm of what runs, and no token is
simulated by itself. What a step costs is the paced engine's formula (`pagefleet_api.step_costs`), how much of a prompt
a step takes in is the engine's own rule in short: as much as keeps it within the goal for inter-token latency.
"""

import math
from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from pagefleet_api.load import EngineState, Load
from pagefleet_cli.simulation.values import EngineModel, Refusal, Request

BLOCK_TOKENS = 16
LEAST_CHUNK_TOKENS, SHARED_ROWS, SPREAD_STEPS = 64, 1280, 32
BUSY_SPREAD_STEPS, _BUSY_SHARE, _RECENT_STEPS = 8, 0.8, 50
"""As in the engine's `scheduler.pace`."""
_STEP_SLACK, _WORK_SLACK_S = 1e-6, 1e-9
"""What rounding may leave of a request that is over."""


class Admitted(NamedTuple):
    """A request got a seat."""

    number: int
    when_s: float


class Advanced(NamedTuple):
    """What happened on a pod at one moment, by number of the request."""

    first_tokens: list[int]
    finished: list[int]


class SimulatedPod:
    """The state of one pod; all times in seconds since the trace began."""

    __slots__ = (
        "_context", "_costs", "_decode_rate", "_decodes", "_engine", "_head_left_s", "_kv_base", "_now_s",
        "_prefill_rate", "_prefilling_s", "_prefilling_tokens", "_prefills", "_queued_tokens", "_requests",
        "_reserved", "_share_with_prompts", "_steps", "_together", "_waiting", "created_s", "draining_since_s",
        "in_flight", "number", "ready", "ready_at_s", "version",
    )  # fmt: skip

    def __init__(
        self, number: int, engine: EngineModel, requests: tuple[Request, ...], created_s: float, ready_at_s: float
    ) -> None:
        self.number, self.created_s, self.ready_at_s = number, created_s, ready_at_s
        self.ready = False
        self.draining_since_s: float | None = None
        self.in_flight = 0
        self.version = 0
        """Changes with each event: what was expected of it before is void."""
        self._engine, self._costs, self._requests = engine, engine.costs, requests
        self._now_s = created_s
        self._steps = 0.0
        self._share_with_prompts = 0.0
        """Of the latest steps that decode."""
        self._decode_rate = self._prefill_rate = 0.0
        self._together = False
        self._decodes: list[tuple[float, int]] = []
        self._context = 0.0
        self._kv_base = 0.0
        self._prefills: deque[tuple[int, float]] = deque()
        self._head_left_s = self._prefilling_s = 0.0
        self._prefilling_tokens = 0
        self._waiting: deque[int] = deque()
        self._queued_tokens = self._reserved = 0

    def refusal(self, request: Request) -> Refusal | None:
        """Why it would answer 429 or 400; None where it accepts the request."""
        if request.prompt_tokens >= self._engine.window_tokens:
            return self._engine.too_long
        accepts = len(self._waiting) < self._engine.max_queued_requests or self._has_seat(request)
        return None if accepts else Refusal.QUEUE_FULL

    def submit(self, number: int, now_s: float) -> list[Admitted]:
        """Take a request that it accepts."""
        self._pass_time(now_s)
        self.in_flight += 1
        self._waiting.append(number)
        self._queued_tokens += self._requests[number].prompt_tokens
        return self._settled()

    def advance(self, now_s: float) -> tuple[Advanced, list[Admitted]]:
        """Carry out what is due by `now_s`, the time that `due_s` gave."""
        self._pass_time(now_s)
        happened = Advanced([], [])
        if not self.ready:
            self.ready = True
        elif self._prefills and self._prompts_left_s() <= _WORK_SLACK_S:
            for _ in range(len(self._prefills) if self._together else 1):
                self._end_prefill(happened)
        while self._decodes and self._decodes[0][0] <= self._steps + _STEP_SLACK:
            end_step, number = heappop(self._decodes)
            request = self._requests[number]
            self._context -= _mean_context(request)
            self._kv_base -= request.prompt_tokens + self._output(request) - end_step
            self._finish(number, happened)
        return happened, self._settled()

    def due_s(self) -> float:
        """When something happens next; infinite while it is idle."""
        if not self.ready:
            return self.ready_at_s
        wait_s = math.inf
        if self._decodes:
            wait_s = (self._decodes[0][0] - self._steps) / self._decode_rate
        if self._prefills:
            wait_s = min(wait_s, self._prompts_left_s() / self._prefill_rate)
        return self._now_s + max(wait_s, 0.0)

    def load(self, now_s: float) -> Load:
        """As its `/load` would say."""
        self._pass_time(now_s)
        blocks_total = max(self._engine.kv_tokens // BLOCK_TOKENS, 1)
        tokens = self._kv_base + len(self._decodes) * self._steps + self._prefilling_tokens
        return Load(
            state=EngineState.READY,
            running=self.in_flight - len(self._waiting),
            waiting=len(self._waiting),
            max_num_seqs=self._engine.max_num_seqs,
            block_size=BLOCK_TOKENS,
            blocks_used=min(max(round(tokens / BLOCK_TOKENS), 0), blocks_total),
            blocks_total=blocks_total,
            queued_prompt_tokens=self._queued_tokens,
            seconds_since_last_step=0.0,
        )

    def _prompts_left_s(self) -> float:
        """Work until prompts end: all of them where one step takes them in, else the first."""
        return self._prefilling_s if self._together else self._head_left_s

    def _pass_time(self, now_s: float) -> None:
        passed_s = now_s - self._now_s
        self._now_s = now_s
        steps = passed_s * self._decode_rate
        self._steps += steps
        kept = math.exp(-steps / _RECENT_STEPS)
        self._share_with_prompts = kept * self._share_with_prompts + (1 - kept) * bool(self._prefills)
        done_s = passed_s * self._prefill_rate
        self._head_left_s -= done_s
        self._prefilling_s -= done_s

    def _end_prefill(self, happened: Advanced) -> None:
        number, _ = self._prefills.popleft()
        self._head_left_s = self._prefills[0][1] if self._prefills else 0.0
        request = self._requests[number]
        self._prefilling_tokens -= request.prompt_tokens
        happened.first_tokens.append(number)
        if self._output(request) == 1:
            self._finish(number, happened)
            return
        heappush(self._decodes, (self._steps + self._output(request) - 1, number))
        self._context += _mean_context(request)
        self._kv_base += request.prompt_tokens + 1 - self._steps

    def _finish(self, number: int, happened: Advanced) -> None:
        self.in_flight -= 1
        self._reserved -= self._need(self._requests[number])
        happened.finished.append(number)

    def _settled(self) -> list[Admitted]:
        """Seats filled, rates set anew."""
        admitted = []
        while self._waiting and self._has_seat(request := self._requests[self._waiting[0]]):
            number = self._waiting.popleft()
            work_s = self._work_s(request.prompt_tokens)
            if not self._prefills:
                self._head_left_s, self._prefilling_s = work_s, 0.0
            self._prefills.append((number, work_s))
            self._prefilling_s += work_s
            self._prefilling_tokens += request.prompt_tokens
            self._queued_tokens -= request.prompt_tokens
            self._reserved += self._need(request)
            admitted.append(Admitted(number, self._now_s))
        self._set_rates()
        self.version += 1
        return admitted

    def _set_rates(self) -> None:
        costs, decodes = self._costs, len(self._decodes)
        rows_s, apart_s = costs.token_s * decodes, costs.fixed_s + costs.context_token_s * self._context
        slice_s = self._slice_s(rows_s, apart_s) if self._prefills else 0.0
        step_s = max(apart_s + max(costs.weights_s, rows_s + slice_s), _WORK_SLACK_S)
        self._decode_rate = 1 / step_s if decodes else 0.0
        self._prefill_rate = slice_s / step_s
        self._together = slice_s >= self._prefilling_s

    def _slice_s(self, rows_s: float, apart_s: float) -> float:
        """Seconds of prompts that one step takes in."""
        token_s = self._costs.token_s
        slice_s = min(self._prefilling_s, token_s * self._engine.max_num_batched_tokens)
        if rows_s:
            spread_steps = BUSY_SPREAD_STEPS if self._share_with_prompts > _BUSY_SHARE else SPREAD_STEPS
            joined_s = max(self._head_left_s, token_s * SHARED_ROWS, self._prefilling_s / spread_steps)
            within_s = max(self._engine.itl_goal_s - rows_s - apart_s, token_s * LEAST_CHUNK_TOKENS)
            slice_s = min(slice_s, joined_s, within_s)
        return max(slice_s, _WORK_SLACK_S)

    def _work_s(self, tokens: int) -> float:
        return self._costs.token_s * tokens + self._costs.pair_s * tokens * (tokens + 1) / 2

    def _has_seat(self, request: Request) -> bool:
        seated = len(self._decodes) + len(self._prefills)
        return seated < self._engine.max_num_seqs and self._reserved + self._need(request) <= self._engine.kv_tokens

    def _output(self, request: Request) -> int:
        """Tokens of the answer, as far as the window goes."""
        return min(request.output_tokens, self._engine.window_tokens - request.prompt_tokens)

    def _need(self, request: Request) -> int:
        return request.prompt_tokens + self._output(request)


def _mean_context(request: Request) -> float:
    """Positions that its decodes attend to, over its whole answer."""
    return request.prompt_tokens + request.output_tokens / 2
