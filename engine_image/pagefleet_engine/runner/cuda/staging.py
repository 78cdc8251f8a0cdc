"""Weights on their way to the GPU: file pages to pinned memory to the device, several tensors at a time."""

import threading

import torch

from pagefleet_engine.models.weights import Weights

BUFFER_BYTES = 64 << 20


class StagedWeights:
    """Another source's tensors on a GPU, in one number format (`models.weights.Weights`); threads may share it.

    Each thread has two pinned buffers: it fills one from the file's pages while the device copies the other.
    """

    def __init__(self, source: Weights, device: torch.device, dtype: torch.dtype) -> None:
        self._source, self._device, self._dtype = source, device, dtype
        self._local = threading.local()

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor on the device; its copy is in the current stream of the calling thread."""
        values = self._source.tensor(name)
        if values.device == self._device:
            return values.to(self._dtype)
        return self._staged(values.contiguous()).to(self._dtype)

    def _staged(self, values: torch.Tensor) -> torch.Tensor:
        target = torch.empty(values.shape, dtype=values.dtype, device=self._device)
        source_bytes, target_bytes = values.view(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
        lanes = self._lanes()
        for number, first in enumerate(range(0, source_bytes.numel(), BUFFER_BYTES)):
            part = source_bytes[first : first + BUFFER_BYTES]
            buffer, copied = lanes[number % len(lanes)]
            copied.synchronize()
            buffer[: part.numel()].copy_(part)
            target_bytes[first : first + part.numel()].copy_(buffer[: part.numel()], non_blocking=True)
            copied.record()
        return target

    def _lanes(self) -> list[tuple[torch.Tensor, torch.cuda.Event]]:
        if not hasattr(self._local, "lanes"):
            self._local.lanes = [
                (torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in range(2)
            ]
        lanes: list[tuple[torch.Tensor, torch.cuda.Event]] = self._local.lanes
        return lanes
