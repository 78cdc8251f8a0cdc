"""What the GPU's runner counts: which steps replay graphs, and with how much padding."""

from collections.abc import Callable

import pytest
import torch

from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.weights import Weights
from pagefleet_engine.runner.cuda import runner as runner_module
from pagefleet_engine.runner.cuda.attention import AttentionStep
from pagefleet_engine.runner.cuda.captured import CapturedSizes
from pagefleet_engine.runner.cuda.rows import DeviceStep, StepRows
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.steps import GpuStatus
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.runner.cuda.test_runner import BLOCKS, PROMPTS, gpu_runner, model

__all__ = ["model"]
pytestmark = pytest.mark.torch
PROMPT_ROWS = sum(len(prompt) for prompt in PROMPTS)


class Replayed:
    """In place of graphs: sizes that count as captured, and computing a step as one that replays."""

    def __init__(self, replay: Callable[[int], None], *sizes: int) -> None:
        self.replay = replay
        self.sizes = CapturedSizes(sizes, lambda size: None)
        self.sizes.capture(sizes)


class ReplayedSegments(Replayed):
    def __init__(self, runner: CudaRunner, *sizes: int) -> None:
        super().__init__(lambda size: None, *sizes)
        self.counts, self._runner = self.sizes, runner

    def run(self, rows: int, attention: AttentionStep, kept: torch.Tensor | None) -> torch.Tensor:
        step_rows = StepRows(*(tensor[:rows] for tensor in self._runner._inputs[:4]))
        return self._runner._decoder.forward(DeviceStep(step_rows, attention), kept)


@pytest.fixture(autouse=True)
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the allocator says it has given out: the last entry."""
    said = [1]
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: said[-1])
    return said


def with_graphs(runner: CudaRunner, *, decodes: tuple[int, ...], rows: tuple[int, ...]) -> CudaRunner:
    runner._graphs = Replayed(runner._decode_step, *decodes)  # type: ignore[assignment]  # what the runner uses of it
    runner._segments = ReplayedSegments(runner, *rows)  # type: ignore[assignment]  # likewise
    return runner


def answers(runner: CudaRunner, count: int) -> list[list[int]]:
    batch = step_driver.sequences(PROMPTS, BLOCKS, count)
    step_driver.run_batched(runner, batch, count)
    return [sequence.answer for sequence in batch]


def test_without_graphs_every_step_counts_as_one_without(model: tuple[ModelConfig, Weights], device: str) -> None:
    runner = with_graphs(gpu_runner(model, device), decodes=(), rows=())
    answers(runner, 4)
    assert runner.gpu == GpuStatus(other_steps=4)


def test_padding_is_counted_beside_all_rows_of_steps_that_replay(
    model: tuple[ModelConfig, Weights], device: str
) -> None:
    runner = with_graphs(gpu_runner(model, device), decodes=(1, 8), rows=(32, 64))
    expected = answers(gpu_runner(model, device), 4)
    assert answers(runner, 4) == expected
    prompts, decodes = 64, 3 * 8
    padding = 64 - PROMPT_ROWS + 3 * (8 - len(PROMPTS))
    assert runner.gpu == GpuStatus(replayed_steps=4, replayed_rows=prompts + decodes, padding_rows=padding)


def test_a_step_larger_than_all_that_is_captured_counts_as_one_without(
    model: tuple[ModelConfig, Weights], device: str
) -> None:
    runner = with_graphs(gpu_runner(model, device), decodes=(1, 2), rows=(32,))
    answers(runner, 3)
    assert runner.gpu == GpuStatus(other_steps=3)


def test_steps_for_nobody_are_not_counted(model: tuple[ModelConfig, Weights], device: str) -> None:
    runner = with_graphs(gpu_runner(model, device), decodes=(), rows=())
    while runner.idle_work():
        pass
    assert runner.gpu.steps == 0


def test_the_memory_in_use_is_looked_at_when_it_is_quiet_and_once_in_many_steps(
    model: tuple[ModelConfig, Weights], device: str, allocated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "MEMORY_EVERY_STEPS", 3)
    runner = with_graphs(gpu_runner(model, device), decodes=(8,), rows=())
    runner.warm_up()
    told = [runner.gpu.allocated_bytes]
    allocated.append(2)
    for steps in (2, 1):
        answers(runner, steps)
        told.append(runner.gpu.allocated_bytes)
    allocated.append(3)
    runner.idle_work()
    assert [*told, runner.gpu.allocated_bytes] == [1, 1, 2, 3]
