"""Tensors that live as long as the runner: seats, step inputs, and the way of a packed step to the device."""

from dataclasses import dataclass

import torch

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.kernels.prepare import SeatState, StepInputs
from pagefleet_engine.models.packed import NO_ADAPTER
from pagefleet_engine.runner.cuda.packing import Ints
from pagefleet_engine.steps import RunnerBroken

LANES = 6
"""Host memory must not be overwritten before its copy was made: three steps are at work at most (one computes, one
waits for it, one is being packed), with two copies each."""


def seat_state(seats: int, max_blocks: int, dummy_block: int, device: torch.device) -> SeatState:
    """State of `seats` sequences and of nobody's seat, every block the dummy one."""
    return SeatState(
        newest_token=torch.zeros(seats + 1, dtype=torch.int32, device=device),
        block_tables=torch.full((seats + 1, max_blocks), dummy_block, dtype=torch.int32, device=device),
        temperature=torch.zeros(seats + 1, dtype=torch.float32, device=device),
        seeds=torch.zeros(seats + 1, dtype=torch.int64, device=device),
    )


def step_inputs(max_rows: int, max_decodes: int, device: torch.device) -> StepInputs:
    """Room for the largest step."""
    rows = [torch.zeros(max_rows, dtype=torch.int32, device=device) for _ in range(4)]
    decodes = [torch.zeros(max_decodes, dtype=torch.int32, device=device) for _ in range(2)]
    return StepInputs(*rows, *decodes)


def clear(inputs: StepInputs, dummy_block: int, nobody: int) -> None:
    """Make the inputs those of a step for nobody: padding alone, which reads and writes the dummy block."""
    inputs.tokens.zero_()
    inputs.positions.zero_()
    inputs.slots.fill_(dummy_block * BLOCK_TOKENS)
    inputs.adapters.fill_(NO_ADAPTER)
    inputs.seats.fill_(nobody)
    inputs.context_lengths.fill_(1)


def require_device(error: BaseException) -> None:
    """After an error of the device: raise RunnerBroken when nothing runs on it any more."""
    if not isinstance(error, torch.AcceleratorError):
        return
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError:
        raise RunnerBroken(f"the GPU computes nothing any more: {error}") from error


def host_memory(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Pinned memory, from and to which the device copies while the host goes on."""
    return torch.empty(size, dtype=dtype, pin_memory=torch.cuda.is_available())


@dataclass(slots=True)
class _Lane:
    host: torch.Tensor
    device: torch.Tensor
    copied: torch.cuda.Event


class Uploads:
    """Pinned memory that steps take in turn; int32 arrays in, int32 tensors on the device out."""

    def __init__(self, device: torch.device, size: int) -> None:
        self._device = device
        self._lanes = [self._lane(size) for _ in range(LANES)]
        self._next = 0

    def send(self, values: Ints) -> torch.Tensor:
        """One copy, which the device makes in stream order; valid until LANES sends later."""
        index = self._next % LANES
        self._next += 1
        if values.size > self._lanes[index].host.numel():
            self._lanes[index].copied.synchronize()
            self._lanes[index] = self._lane(int(values.size * 1.5))
        lane = self._lanes[index]
        lane.copied.synchronize()
        lane.host.numpy()[: values.size] = values
        sent = lane.device[: values.size]
        sent.copy_(lane.host[: values.size], non_blocking=True)
        lane.copied.record()
        return sent

    def _lane(self, size: int) -> _Lane:
        return _Lane(host_memory(size), torch.empty(size, dtype=torch.int32, device=self._device), torch.cuda.Event())
