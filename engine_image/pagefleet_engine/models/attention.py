"""Paged attention in plain torch: block tables in, no padding to a fixed length, grouped-query.

The KV memory of a layer is [2 x KV heads, blocks, 16 x head size], keys' heads first: one gather of whole
blocks gives keys and values of every head as contiguous matrices (Kwon et al. 2023 for the paging; the
layout is the one that measured fastest here, see bench/LOG.md).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.packed import DecodeGroup, Ints, PackedStep, PrefillChunk

QUERY_BLOCK = 64
"""Prefill rows attended to together: past keys only, so half of a prompt's score matrix is never made."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Query heads per KV head, KV heads, elements per head."""

    groups: int
    kv_heads: int
    head_size: int

    @classmethod
    def of(cls, config: ModelConfig) -> "HeadShape":
        """The shape that a model's configuration gives."""
        return cls(config.heads // config.kv_heads, config.kv_heads, config.head_size)

    @property
    def query_size(self) -> int:
        """Elements of one token's queries, all heads."""
        return self.groups * self.kv_heads * self.head_size

    @property
    def key_size(self) -> int:
        """Elements of one token's keys, all heads."""
        return self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class _Decodes:
    """A decode group on the device. `mask` is [KV heads x sequences, groups, length] or None.

    `gathered` takes each layer's keys and values in turn: fresh memory for each would cost page faults.
    """

    rows: slice
    count: int
    blocks: torch.Tensor
    gathered: torch.Tensor
    length: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A chunk on the device. `blocks` begin at position `first`: a window needs none before."""

    first_row: int
    tokens: int
    start: int
    first: int
    blocks: torch.Tensor
    gathered: torch.Tensor


@dataclass(frozen=True, slots=True)
class _View:
    """What layers with one window attend to in this step."""

    window: int | None
    decodes: list[_Decodes]
    prefills: list[_Prefill]


class StepAttention:
    """What attention needs of one step, made once and used by every layer."""

    def __init__(self, step: PackedStep, shape: HeadShape, config: ModelConfig, like: torch.Tensor) -> None:
        """`like` gives dtype and device of keys and values."""
        self._shape, self._like = shape, like
        self._scale, self._soft_cap = config.query_scale, config.attention_soft_cap
        self._unused = like.new_empty((1, 1, 1))
        self._slots = torch.from_numpy(step.slots).to(like.device)
        longest = min(QUERY_BLOCK, max((chunk.tokens for chunk in step.prefills), default=0))
        self._causal = like.new_full((longest, longest), -math.inf).triu_(1)
        self._views = {layer.window: self._view(step, layer.window) for layer in dict.fromkeys(config.attention)}

    def write(self, memory: torch.Tensor, projected: torch.Tensor) -> None:
        """Store this step's keys and values; `projected` is [tokens, query + 2 x key size]."""
        shape = self._shape
        fresh = projected[:, shape.query_size :].unflatten(1, (2 * shape.kv_heads, shape.head_size))
        memory.view(2 * shape.kv_heads, -1, shape.head_size).index_copy_(1, self._slots, fresh.transpose(0, 1))

    def attend(self, memory: torch.Tensor, projected: torch.Tensor, window: int | None) -> torch.Tensor:
        """Attention output [tokens, query size] of queries over what `memory` holds of their sequences.

        A token sees the newest `window` positions up to its own, or all.
        """
        queries, view = projected[:, : self._shape.query_size], self._views[window]
        output = queries.new_empty(queries.shape)
        for group in view.decodes:
            output[group.rows] = self._attend_decodes(memory, queries[group.rows], group)
        for chunk in view.prefills:
            self._attend_prefill(memory, queries, output, chunk, window)
        return output

    def _attend_decodes(self, memory: torch.Tensor, queries: torch.Tensor, group: _Decodes) -> torch.Tensor:
        shape, count = self._shape, group.count
        heads = shape.kv_heads * count
        torch.index_select(memory, 1, group.blocks, out=group.gathered)
        kept = group.gathered.view(2, heads, -1, shape.head_size)[:, :, : group.length]
        rows = queries.unflatten(1, (shape.kv_heads, shape.groups, shape.head_size)).transpose(0, 1)
        scores = self._scores(rows.reshape(heads, shape.groups, shape.head_size), kept[0], group.mask)
        mixed = torch.bmm(scores.softmax(-1), kept[1])
        by_head = mixed.view(shape.kv_heads, count, shape.groups * shape.head_size)
        return by_head.transpose(0, 1).reshape(count, shape.query_size)

    def _attend_prefill(
        self, memory: torch.Tensor, queries: torch.Tensor, output: torch.Tensor, chunk: _Prefill, window: int | None
    ) -> None:
        shape = self._shape
        torch.index_select(memory, 1, chunk.blocks, out=chunk.gathered)
        kept = chunk.gathered.view(2, shape.kv_heads, -1, shape.head_size)
        split = (shape.kv_heads, shape.groups, shape.head_size)
        for offset in range(0, chunk.tokens, QUERY_BLOCK):
            count = min(QUERY_BLOCK, chunk.tokens - offset)
            rows = slice(chunk.first_row + offset, chunk.first_row + offset + count)
            position = chunk.start + offset
            first = chunk.first if window is None else max(position - window + 1, 0)
            seen = kept[:, :, first - chunk.first : position + count - chunk.first]
            by_head = queries[rows].unflatten(1, split).permute(1, 2, 0, 3)
            by_head = by_head.reshape(shape.kv_heads, shape.groups * count, shape.head_size)
            scores = self._scores(by_head, seen[0], None)
            by_row = scores.view(shape.kv_heads, shape.groups, count, -1)
            by_row[..., -count:].add_(self._causal[:count, :count])
            if window is not None and position + count > window:
                by_row.add_(self._too_old(first, position, count, window))
            mixed = torch.bmm(scores.softmax(-1), seen[1])
            shaped = mixed.view(shape.kv_heads, shape.groups, count, shape.head_size)
            output[rows].unflatten(1, split).copy_(shaped.permute(2, 0, 1, 3))

    def _scores(self, queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[heads, rows, positions], `mask` added: scaled, and capped before the mask where the model caps."""
        bias, beta = (self._unused, 0) if mask is None or self._soft_cap is not None else (mask, 1)
        scores = torch.baddbmm(bias, queries, keys.transpose(1, 2), beta=beta, alpha=self._scale)
        if self._soft_cap is not None:
            scores.div_(self._soft_cap).tanh_().mul_(self._soft_cap)
            if mask is not None:
                scores.add_(mask)
        return scores

    def _too_old(self, first: int, position: int, count: int, window: int) -> torch.Tensor:
        """-inf where a row's window has not begun: [rows from `position`, positions from `first`]."""
        rows, columns = torch.arange(position, position + count), torch.arange(first, position + count)
        hidden = columns <= rows[:, None] - window
        return torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf).to(self._like)

    def _view(self, step: PackedStep, window: int | None) -> _View:
        decodes = [self._on_device(group, window) for group in step.decodes]
        return _View(window, decodes, [self._chunk_on_device(chunk, window) for chunk in step.prefills])

    def _on_device(self, group: DecodeGroup, window: int | None) -> _Decodes:
        count = len(group.context_lengths)
        rows = slice(group.first_row, group.first_row + count)
        lengths, table, starts = group.context_lengths, group.blocks, np.zeros(count, np.int64)
        if window is not None and int(lengths[0]) > window:
            table, starts = windowed_tables(table, lengths, window)
        blocks = torch.from_numpy(table.reshape(-1)).to(self._like.device)
        longest = int(lengths[0])
        if int(lengths[-1]) == longest and (window is None or longest <= window):
            return _Decodes(rows, count, blocks, self._room(blocks), longest, None)
        length = table.shape[1] * BLOCK_TOKENS
        positions = starts[:, None] + np.arange(length)
        unseen = positions >= lengths[:, None]
        if window is not None:
            unseen |= positions < lengths[:, None] - window
        mask = torch.zeros(count, 1, length).masked_fill_(torch.from_numpy(unseen)[:, None], -math.inf)
        full = mask.to(self._like).expand(self._shape.kv_heads, count, self._shape.groups, length)
        mask = full.reshape(-1, self._shape.groups, length)
        return _Decodes(rows, count, blocks, self._room(blocks), length, mask)

    def _chunk_on_device(self, chunk: PrefillChunk, window: int | None) -> _Prefill:
        skipped = 0 if window is None else max(chunk.start - window + 1, 0) // BLOCK_TOKENS
        blocks = torch.from_numpy(chunk.blocks[skipped:]).to(self._like.device)
        first = skipped * BLOCK_TOKENS
        return _Prefill(chunk.first_row, chunk.tokens, chunk.start, first, blocks, self._room(blocks))

    def _room(self, blocks: torch.Tensor) -> torch.Tensor:
        """Memory for what a gather of these blocks gives."""
        shape = self._shape
        return self._like.new_empty((2 * shape.kv_heads, len(blocks), BLOCK_TOKENS * shape.head_size))


def windowed_tables(blocks: Ints, lengths: Ints, window: int) -> tuple[Ints, Ints]:
    """The blocks that hold each sequence's newest `window` positions, and the first position in them.

    `blocks` is [sequences, width], padded with each sequence's last block, as the result is.
    """
    skipped = np.maximum(lengths - window, 0) // BLOCK_TOKENS
    used = -(-lengths // BLOCK_TOKENS)
    columns = skipped[:, None] + np.arange(int((used - skipped).max()))
    return np.take_along_axis(blocks, np.minimum(columns, used[:, None] - 1), 1), skipped * BLOCK_TOKENS
