"""Any other causal decoder on a CPU: transformers' code computes it, our pages hold its keys and values."""

import numpy as np
import torch

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.models.attention import HeadShape, StepAttention
from pagefleet_engine.models.foreign_model import ForeignModel
from pagefleet_engine.models.packed import Ints, PackedStep, PrefillChunk
from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.steps import Progress, no_progress


class ForeignDecoder(PagedDecoder):
    """A transformers model as a decoder of ours."""

    def __init__(self, model: ForeignModel) -> None:
        """Takes the model's attention over. Raises ModelUnsupported where its numbers over pages are not its own."""
        super().__init__(model.config, model.dtype, model.device)
        self._model = model
        self._progress: Progress = no_progress
        model.attend_by(self._attend)
        token_ids = model.trial_ids.cpu().numpy()
        self.allocate(blocks_for(len(token_ids)))
        model.compare(lambda start, end: self._forward(_piece(token_ids, start, end), no_progress))
        self._memory = []

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return self._model.weight_bytes

    def _forward(self, step: PackedStep, progress: Progress) -> torch.Tensor:
        self._attention = StepAttention(step, HeadShape.of(self.config), self.config, self._memory[0])
        self._progress = progress
        return self._model.hidden(self._ints(step.token_ids), self._ints(step.positions))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden).float()

    def _attend(self, index: int, projected: torch.Tensor) -> torch.Tensor:
        memory = self._memory[index]
        self._attention.write(memory, projected)
        attended = self._attention.attend(memory, projected, self.config.attention[index].window)
        self._progress()
        return attended


def _piece(token_ids: Ints, start: int, end: int) -> PackedStep:
    """Tokens `start` .. `end` - 1 of one sequence in blocks 0, 1, …"""
    positions = np.arange(start, end, dtype=np.int64)
    blocks = np.arange(-(-end // BLOCK_TOKENS), dtype=np.int64)
    last_rows = np.array([end - start - 1], np.int64)
    chunk = PrefillChunk(0, end - start, start, blocks)
    return PackedStep(token_ids[start:end], positions, positions, (0,), last_rows, (), (chunk,))
