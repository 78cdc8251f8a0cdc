"""Any other causal decoder on a GPU: transformers' code computes it, our kernels keep and attend to its pages.

Each step is launched operation by operation: transformers' code is not known to be the same twice, which a graph
would need.
"""

from typing import TYPE_CHECKING

import torch

from pagefleet_api.sizing import blocks_for
from pagefleet_engine.kernels import rope
from pagefleet_engine.models.layers import TopWeights
from pagefleet_engine.runner.cuda.attention import AttentionStep, PagedChunks
from pagefleet_engine.runner.cuda.decoder import CudaDecoder
from pagefleet_engine.runner.cuda.rows import DeviceStep, StepRows

if TYPE_CHECKING:
    from pagefleet_engine.models.foreign_model import ForeignModel  # needs transformers


class ForeignCudaDecoder(CudaDecoder):
    """A decoder whose layers are all transformers'; no graphs, one GPU."""

    def __init__(self, model: "ForeignModel", *, max_decodes: int) -> None:
        """Takes the model's attention over. Raises ModelUnsupported where its numbers over pages are not its own."""
        embedding = model.embedding
        top = TopWeights(embedding, embedding, embedding)  # what stands around the layers is transformers' too
        super().__init__(model.config, [], top, max_positions=1, max_decodes=max_decodes)
        self._model = model
        self._step: DeviceStep | None = None
        model.attend_by(self._attend)
        self.allocate(blocks_for(len(model.trial_ids)))
        model.compare(self._piece)
        self.allocate(0)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on this device."""
        return self._model.weight_bytes

    def few_rows_fit(self, rows: int) -> bool:
        """Never: the products are not ours."""
        return False

    def forward(self, step: DeviceStep, kept: torch.Tensor | None = None) -> torch.Tensor:
        """As `CudaDecoder.forward`."""
        self._step = step
        try:
            with self.attention.backends(step.attention):
                hidden = self._model.hidden(step.rows.tokens.long(), step.rows.positions.long())
        finally:
            self._step = None
        return hidden if kept is None else hidden.index_select(0, kept)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """As `CudaDecoder.logits`."""
        return out.copy_(self._model.logits(hidden))

    def _attend(self, index: int, projected: torch.Tensor) -> torch.Tensor:
        step, config = self._step, self.config
        if step is None:
            raise ValueError("the model's layers are computed by `forward` alone")
        # transformers has turned queries and keys; without a table keys and values are only written
        rope.rope_and_cache(
            projected, step.rows.positions, None, step.rows.slots, self.memory[index],
            heads=config.heads, kv_heads=config.kv_heads, head_size=config.head_size, rotary_size=0,
        )  # fmt: skip
        return self.attend(index, projected, step.attention)

    def _piece(self, start: int, end: int) -> torch.Tensor:
        """Tokens of the model's short text, in blocks 0, 1, …; one token is a decode."""
        count = end - start
        blocks, positions = self._ints(range(len(self.memory[0]))), self._ints(range(start, end))
        rows = StepRows(self._model.trial_ids[start:end], positions, positions, self._ints([0] * count))
        seat, lengths = self._ints([0]), self._ints([end])
        chunk = PagedChunks(0, count, seat, self._ints([0, count]), self._ints([start]), count, end)
        decodes = 1 if count == 1 else 0
        attention = AttentionStep(
            blocks[None], decodes, seat[:decodes], lengths[:decodes], None if decodes else chunk
        )  # fmt: skip
        return self.forward(DeviceStep(rows, attention))

    def _ints(self, values: "list[int] | range") -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)
