"""How the prompts' chunks of a step are attended to: whole ones densely, the rest through their pages. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagefleet_engine.runner.cuda.attention import DensePrompt, PagedChunks
from pagefleet_engine.runner.cuda.packing import Chunk, Ints, Packed, is_dense


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """`paged_chunks` come first among the step's chunks, from `first_row` on; `dense` after them."""

    first_row: int
    paged_chunks: tuple[Chunk, ...]
    dense: tuple[DensePrompt, ...]
    sampled_rows: int
    scored: bool
    """Whether some prompt wants log-probabilities, so that every row matters to its end."""

    def values(self, sampled: Sequence[tuple[int, int, int]]) -> Ints:
        """One array for the device: seats, offsets and starts of paged chunks, then columns of `sampled`
        (row, seat, new position of each sequence that samples)."""
        chunks = self.paged_chunks
        offsets = np.cumsum([0, *(chunk.tokens for chunk in chunks)])
        columns = np.array(sampled, np.int32).reshape(-1, 3).T.reshape(-1)
        seats = [chunk.seat for chunk in chunks]
        starts = [chunk.start for chunk in chunks]
        return np.concatenate([np.array([*seats, *offsets, *starts], np.int32), columns])

    def paged(self, sent: torch.Tensor) -> PagedChunks | None:
        """The paged part, as views into what `values` became on the device."""
        count = len(self.paged_chunks)
        if count == 0:
            return None
        return PagedChunks(
            first_row=self.first_row, rows=sum(chunk.tokens for chunk in self.paged_chunks),
            seats=sent[:count], token_offsets=sent[count : 2 * count + 1], starts=sent[2 * count + 1 : 3 * count + 1],
            longest=max(chunk.tokens for chunk in self.paged_chunks),
            max_context=max(chunk.start + chunk.tokens for chunk in self.paged_chunks),
        )  # fmt: skip

    def sampling(self, sent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, seats and positions of those who sample."""
        first = 3 * len(self.paged_chunks) + 1
        rows, seats, positions = sent[first : first + 3 * self.sampled_rows].view(3, -1)
        return rows, seats, positions


def attention_chunks(packed: Packed, *, dense_allowed: bool) -> ChunkPlan:
    """Split a step's chunks; they are in the packer's order, those that may be dense last and by length."""
    paged = [chunk for chunk in packed.chunks if not (dense_allowed and is_dense(chunk.start, chunk.tokens))]
    dense: list[DensePrompt] = []
    row = packed.decode_rows + sum(chunk.tokens for chunk in paged)
    for chunk in packed.chunks[len(paged) :]:
        last = dense[-1] if dense else None
        if last is not None and last.tokens == chunk.tokens:
            dense[-1] = DensePrompt(last.first_row, last.prompts + 1, last.tokens)
        else:
            dense.append(DensePrompt(row, 1, chunk.tokens))
        row += chunk.tokens
    return ChunkPlan(packed.decode_rows, tuple(paged), tuple(dense), len(packed.sampling), _scored(packed))


def _scored(packed: Packed) -> bool:
    return any(step.prompt_logprobs is not None for step in packed.steps)
