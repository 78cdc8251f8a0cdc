"""How much of a prompt a step computes while others wait for their next token. Pure.

A step's time is modelled as a + b·tokens + c·decode context + d·attention pairs of the chunks, and fitted to
the steps of this machine as they go. With a goal for the time between two tokens, a step that also decodes
takes as much of the prompts as is expected to keep within it. (Sarathi-Serve, Agrawal et al., OSDI 2024, has a
fixed number of tokens in its place; the time of a token grows with the prompt's length.)

The goal is what the first prompt of a step may use. Further prompts join it only as far as many wait: a step reads
all weights whether it has decodes alone or a prompt too, so prompts spread over more of the decodes' steps cost less.
"""

import math
from typing import NamedTuple

from pagefleet_engine.steps import StepPlan

LEAST_CHUNK_TOKENS = 64
"""A prompt advances by this much whatever the goal; fewer tokens cost a GPU as much."""
ROWS_AT_ONCE = 128
"""Rows of a tile in a GPU's matrix products: steps are cut to multiples of it, as the rest of a tile costs the same."""
LEAST_SHARED_ROWS = 1280
"""Up to here further prompts always join: with fewer rows, a row costs a GPU more (8B on an H200, bench/LOG.md)."""
ROWS_OF_A_TURN = 1024
"""Beyond these further prompts join up to a multiple of it: the tiles of products come out even over a GPU's
multiprocessors there, so that a row costs 2 to 5 % less than between two (likewise)."""
SPREAD_STEPS = 32
"""What waits is spread over about so many steps."""
BUSY_SPREAD_STEPS = 8
"""The same where nearly all steps have prompts already: there spreading has nothing left to give, and whoever waits
begins sooner."""
_BUSY_SHARE = 0.8
_RECENT_STEPS = 50
"""About so many steps that decode are asked how many of them had prompts; few, where those who wait find no seat."""
LEARN_EVERY_DECODES = 8
"""Steps that only decode are alike: of so many one is learnt from."""

_UNITS = (1.0, 1e3, 1e5, 1e7)
"""The four quantities are counted in these, so that their costs are of one size."""
_FIRST_COSTS_S = (0.004, 0.022, 0.003, 0.013)
"""Per unit: an 8B model on an H200, for want of anything better before the first step."""
_FIRST_WEIGHT = 0.1
"""What being wrong by as much as a first cost weighs, against a step mispredicted by all its time."""
_FADE = 0.99
"""Weight that a learnt step keeps when the next one is learnt."""
_SWEEPS = 6
_TRUSTED_AFTER_STEPS = 8
_MOST_NEWS = 3.0
"""Once trusted, a prediction is not moved by more than this factor at once: a pause of the machine is no cost."""


class Work(NamedTuple):
    """What a step's time depends on.

    `decode_context` is the positions that its decodes attend to, `chunk_pairs` the pairs of query and key in
    the attention of its chunks.
    """

    tokens: int
    decode_context: int
    chunk_pairs: int

    @classmethod
    def of(cls, plan: StepPlan) -> "Work":
        """The work of a step."""
        tokens = context = pairs = 0
        for step in plan.sequences:
            count = 1 if step.token_ids is None else len(step.token_ids)
            tokens += count
            if count == 1:
                context += step.start + 1
            else:
                pairs += chunk_pairs(step.start, count)
        return cls(tokens, context, pairs)


def chunk_pairs(start: int, tokens: int) -> int:
    """Pairs of query and key in a chunk's attention: each token sees those before it and itself."""
    return tokens * start + tokens * (tokens + 1) // 2


class StepCosts:
    """The fitted model: least squares of relative errors, older steps fading, no cost below nothing.

    Relative errors weigh a step of one millisecond like one of a second, so a step that took far too long for
    once moves little.
    """

    def __init__(self) -> None:
        self._costs = list(_FIRST_COSTS_S)
        self._moments = [[0.0] * 4 for _ in range(4)]
        self._answers = [0.0] * 4
        self._learnt = 0

    def expected_s(self, work: Work) -> float:
        """Seconds that a step with this work will take."""
        return sum(map(float.__mul__, self._costs, _quantities(work)))

    def tokens_within(self, seconds: float, start: int) -> int:
        """Tokens of a chunk that begins at `start` which cost at most `seconds`, not counting a step's own cost.

        Solves b·t + d·(start·t + t²/2) = seconds for t.
        """
        if seconds <= 0:
            return 0
        pair_s = self._costs[3] / _UNITS[3]
        linear = self._costs[1] / _UNITS[1] + pair_s * (start + 0.5)
        root = linear + math.sqrt(linear * linear + 2 * pair_s * seconds)
        return int(min(2 * seconds / root, 1e9)) if root > 0 else 1_000_000_000

    def chunk_s(self, start: int, tokens: int) -> float:
        """Seconds that a chunk adds to its step."""
        return self._costs[1] * tokens / _UNITS[1] + self._costs[3] * chunk_pairs(start, tokens) / _UNITS[3]

    def learn(self, work: Work, step_s: float) -> None:
        """Take in that a step with this work took `step_s`."""
        expected = self.expected_s(work)
        if self._learnt >= _TRUSTED_AFTER_STEPS:
            step_s = min(max(step_s, expected / _MOST_NEWS), expected * _MOST_NEWS)
        if step_s <= 0:
            return
        self._learnt += 1
        scaled = [quantity / step_s for quantity in _quantities(work)]
        for row, answers, first in zip(self._moments, range(4), scaled, strict=True):
            self._answers[answers] = self._answers[answers] * _FADE + first
            for column, second in enumerate(scaled):
                row[column] = row[column] * _FADE + first * second
        self._fit()

    def _fit(self) -> None:
        """Coordinate descent on the normal equations, held at the first costs by a little, and above nothing."""
        costs = self._costs
        for _ in range(_SWEEPS):
            for index, (row, first) in enumerate(zip(self._moments, _FIRST_COSTS_S, strict=True)):
                held = _FIRST_WEIGHT / (first * first)
                others = sum(map(float.__mul__, row, costs)) - row[index] * costs[index]
                costs[index] = max((self._answers[index] - others + held * first) / (row[index] + held), 0.0)


class StepBudget:
    """What one step may still take in: tokens, and where somebody waits for a token, seconds and rows.

    A chunk gets at least `LEAST_CHUNK_TOKENS`, and the first of a step may always be begun, so that no goal
    stops a prompt; those after it only where that many fit.
    """

    __slots__ = ("_costs", "_first", "_rows", "_seconds", "_shared_rows", "tokens")

    def __init__(
        self,
        tokens: int,
        costs: StepCosts | None = None,
        seconds: float | None = None,
        *,
        rows: int = 0,
        shared_rows: int = 0,
    ) -> None:
        """`rows` are in the step already; chunks after the first join until it has `shared_rows`, or a full tile."""
        self.tokens = tokens
        self._costs, self._seconds = costs, seconds
        self._rows, self._shared_rows = rows, shared_rows
        self._first = True

    @property
    def open(self) -> bool:
        """Whether another chunk should be begun."""
        if self.tokens == 0 or self._first or self._costs is None or self._seconds is None:
            return self.tokens > 0
        return min(self._costs.tokens_within(self._seconds, 0), self._joinable_rows) >= LEAST_CHUNK_TOKENS

    def chunk(self, start: int, wanted: int) -> int:
        """How many of the `wanted` tokens from `start` on fit in; at least one while there are tokens left."""
        room = min(wanted, self.tokens)
        if self._costs is None or self._seconds is None:
            return room
        within = self._costs.tokens_within(self._seconds, start)
        if not self._first:
            within = min(within, self._joinable_rows)
        if within >= room:
            return room
        whole_tiles = (self._rows + within) // ROWS_AT_ONCE * ROWS_AT_ONCE - self._rows
        return min(room, max(whole_tiles, LEAST_CHUNK_TOKENS))

    def take(self, start: int, tokens: int) -> None:
        """A chunk was planned."""
        self.tokens -= tokens
        self._rows += tokens
        self._first = False
        if self._costs is not None and self._seconds is not None:
            self._seconds -= self._costs.chunk_s(start, tokens)

    @property
    def _joinable_rows(self) -> int:
        return -(-max(self._shared_rows, self._rows) // ROWS_AT_ONCE) * ROWS_AT_ONCE - self._rows


class Pace:
    """The goal and the costs that tell how to reach it."""

    def __init__(self, itl_goal_s: float) -> None:
        self.itl_goal_s = itl_goal_s
        self._costs = StepCosts()
        self._decodes_unlearnt = 0
        self._share_with_prompts = 0.0

    def budget(self, tokens: int, decodes: int, decode_context: int, backlog_tokens: int) -> StepBudget:
        """What prompts may take of a step that has `decodes` decodes and `tokens` tokens left.

        `backlog_tokens` are those of all prompts that are not computed yet.
        """
        if decodes == 0:
            return StepBudget(tokens)
        seconds = self.itl_goal_s - self._costs.expected_s(Work(decodes, decode_context, 0))
        return StepBudget(tokens, self._costs, seconds, rows=decodes, shared_rows=self._shared_rows(backlog_tokens))

    def _shared_rows(self, backlog_tokens: int) -> int:
        rows = backlog_tokens // (BUSY_SPREAD_STEPS if self._share_with_prompts > _BUSY_SHARE else SPREAD_STEPS)
        return LEAST_SHARED_ROWS if rows <= LEAST_SHARED_ROWS else -(-rows // ROWS_OF_A_TURN) * ROWS_OF_A_TURN

    def expected_s(self, plan: StepPlan) -> float:
        """Seconds that the step will take."""
        return self._costs.expected_s(Work.of(plan))

    def learn(self, plan: StepPlan, step_s: float) -> None:
        """Take in how long a step took."""
        # Decodes come first in a plan and chunks last.
        decodes, prompts = plan.sequences[0].tokens == 1, plan.sequences[-1].tokens > 1
        if decodes:
            self._share_with_prompts += (prompts - self._share_with_prompts) / _RECENT_STEPS
        if not prompts:
            self._decodes_unlearnt += 1
            if self._decodes_unlearnt < LEARN_EVERY_DECODES:
                return
            self._decodes_unlearnt = 0
        self._costs.learn(Work.of(plan), step_s)


def _quantities(work: Work) -> tuple[float, ...]:
    return (
        1.0,
        work.tokens / _UNITS[1],
        work.decode_context / _UNITS[2],
        work.chunk_pairs / _UNITS[3],
    )
