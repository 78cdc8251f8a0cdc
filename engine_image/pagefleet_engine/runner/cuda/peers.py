"""What a runner needs of the other ranks of its group; a runner without others has `Alone`."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from pagefleet_engine.runner.cuda.orders import Capture, StepOrder
from pagefleet_engine.runner.cuda.shards import WHOLE, Shard
from pagefleet_engine.steps import Pending, StepPlan


class Stepper(Protocol):
    """A runner as its peers see it."""

    def launch(self, plan: StepPlan) -> Pending:
        """See `steps.Runner`."""
        ...

    def follow(self, order: StepOrder) -> None:
        """Compute this rank's part of a step that another rank planned."""
        ...


class Peers(Protocol):
    """One rank's view of its group. All ranks call what needs all of them in the same order."""

    @property
    def shard(self) -> Shard:
        """Which rank this is."""
        ...

    def join(self) -> None:
        """Wait until all ranks have their weights, and form the group."""
        ...

    def reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' partial rows, in place."""
        ...

    def share(self, tokens: torch.Tensor) -> None:
        """Overwrite int32 `tokens` with the first rank's."""
        ...

    def smallest(self, value: int) -> int:
        """The smallest of all ranks' values."""
        ...

    def together(self, order: StepOrder | Capture) -> AbstractContextManager[None]:
        """Around work that all ranks do at the same time; the first rank's order starts it on the others."""
        ...

    def compute(self, runner: Stepper, plan: StepPlan) -> None:
        """Compute a step that all ranks know will come, and wait for it."""
        ...

    def event(self) -> Any:
        """A torch.cuda.Event whose `synchronize` ends when a rank has failed: then it raises RunnerBroken."""
        ...


class Alone:
    """A group of one."""

    shard = WHOLE

    def join(self) -> None:
        """Nobody else comes."""

    def reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """It is the whole sum."""
        return partial

    def share(self, tokens: torch.Tensor) -> None:
        """Nobody else reads them."""

    def smallest(self, value: int) -> int:
        """The only one."""
        return value

    def together(self, order: StepOrder | Capture) -> AbstractContextManager[None]:
        """Nobody to tell."""
        return nullcontext()

    def compute(self, runner: Stepper, plan: StepPlan) -> None:
        """Launch and wait."""
        runner.launch(plan).results()

    def event(self) -> Any:
        """A plain one."""
        return torch.cuda.Event()
