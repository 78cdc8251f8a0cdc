"""A runner that computes nothing: it takes the time of a GPU and makes its tokens up.

For trying out what is around a GPU without one: scheduling, the API, the operator, a dashboard under load. What it
says means nothing.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pagefleet_api import step_costs
from pagefleet_api.launch import Launch
from pagefleet_api.step_costs import StepCosts
from pagefleet_engine.core.run import LoadedRunner, StartImpossible
from pagefleet_engine.scheduler.pace import Work
from pagefleet_engine.steps import (
    Pending,
    Progress,
    Sampling,
    SequenceResult,
    SequenceStep,
    StepPlan,
    TokenLogprobs,
    no_progress,
)

PACED = "paced"
PROGRESS_INTERVAL_S = 0.1
_MASK = (1 << 64) - 1


def read_costs(path: str | None) -> StepCosts:
    """The costs in this file, or the default; raises StartImpossible with what is wrong with the file."""
    if path is None:
        return step_costs.default()
    try:
        return step_costs.parse(Path(path).read_bytes())
    except OSError as error:
        raise StartImpossible(f"--paced-costs {path}: {error.strerror}") from error
    except step_costs.CostsUnusable as error:
        raise StartImpossible(f"--paced-costs {path}: {error}") from error


def load(launch: Launch, max_model_len: int, vocab_size: int) -> LoadedRunner:
    """A paced runner for a model with this window and vocabulary."""
    costs = read_costs(launch.paced_costs)
    runner = PacedRunner(costs, launch.num_kv_blocks or costs.num_kv_blocks, vocab_size)
    return LoadedRunner(runner, max_model_len, "none", PACED, {}, {}, vocab_size)


class PacedRunner:
    """`steps.Runner` with the time of `StepCosts`; steps are over one after the other, as on a GPU's stream."""

    lookahead = True
    gpu = None

    def __init__(
        self,
        costs: StepCosts,
        num_blocks: int,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._costs, self._num_blocks, self._vocab_size = costs, num_blocks, vocab_size
        self._clock, self._sleep = clock, sleep
        self._busy_until_s = clock()

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool, which holds nothing."""
        return self._num_blocks

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Pending:
        """The step begins when the one before is over."""
        self._busy_until_s = max(self._busy_until_s, self._clock()) + self._costs.step_s(*Work.of(plan))
        return _Pacing(self, plan, self._busy_until_s)

    def idle_work(self) -> bool:
        """Nothing waits."""
        return False

    def wait(self, until_s: float, progress: Progress) -> None:
        """Sleep up to a time of the clock, with signs of life."""
        while (rest_s := until_s - self._clock()) > 0:
            self._sleep(min(rest_s, PROGRESS_INTERVAL_S))
            progress()

    def result(self, step: SequenceStep) -> SequenceResult:
        """What a step says of one sequence."""
        scored = () if step.prompt_logprobs is None else self._scores(step, step.prompt_logprobs)
        if not step.sample:
            return SequenceResult(sequence_id=step.sequence_id, token_id=None, prompt_logprobs=scored)
        token_id = made_up_token(step.sampling, step.start + step.tokens, self._vocab_size)
        wanted = step.sampling.top_logprobs
        return SequenceResult(
            sequence_id=step.sequence_id,
            token_id=token_id,
            logprobs=None if wanted is None else _logprobs(token_id, wanted),
            prompt_logprobs=scored,
        )

    def _scores(self, step: SequenceStep, top: int) -> tuple[TokenLogprobs, ...]:
        known = (*(step.token_ids or ()), step.next_prompt_token)[1:]
        return tuple(_logprobs(token_id, top) for token_id in known if token_id is not None)


class _Pacing:
    def __init__(self, runner: PacedRunner, plan: StepPlan, over_at_s: float) -> None:
        self._runner, self._plan, self._over_at_s = runner, plan, over_at_s

    def results(self, progress: Progress = no_progress) -> Sequence[SequenceResult]:
        """See `Pending`."""
        self._runner.wait(self._over_at_s, progress)
        return [self._runner.result(step) for step in self._plan.sequences]


def made_up_token(sampling: Sampling, position: int, vocab_size: int) -> int:
    """A token that looks random and depends on seed and position alone (SplitMix64, Steele et al. 2014)."""
    state = (sampling.seed * 0x2545F4914F6CDD1D + position * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return (state ^ (state >> 31)) % vocab_size


def _logprobs(token_id: int, top: int) -> TokenLogprobs:
    """As if the token were certain."""
    return TokenLogprobs(token_id, 0.0, ((token_id, 0.0),) if top else ())
