"""Paged attention in plain torch: block tables in, no padding to a fixed length, grouped-query.

The KV memory of a layer is [2 x KV heads, blocks, 16 x head size], keys' heads first: one gather of whole
blocks gives keys and values of every head as contiguous matrices (Kwon et al. 2023 for the paging; the
layout is the one that measured fastest here, see bench/LOG.md).
"""

import math
from dataclasses import dataclass

import torch

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.packed import DecodeGroup, PackedStep, PrefillChunk

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
    first_row: int
    tokens: int
    start: int
    blocks: torch.Tensor
    gathered: torch.Tensor


class StepAttention:
    """What attention needs of one step, made once and used by every layer."""

    def __init__(self, step: PackedStep, shape: HeadShape, like: torch.Tensor) -> None:
        """`like` gives dtype and device of keys and values."""
        self._shape, self._like = shape, like
        self._scale = shape.head_size**-0.5
        self._unused = like.new_empty((1, 1, 1))
        self._slots = torch.from_numpy(step.slots).to(like.device)
        self._decodes = [self._on_device(group) for group in step.decodes]
        self._prefills = [self._chunk_on_device(chunk) for chunk in step.prefills]
        longest = min(QUERY_BLOCK, max((chunk.tokens for chunk in step.prefills), default=0))
        self._causal = like.new_full((longest, longest), -math.inf).triu_(1)

    def write(self, memory: torch.Tensor, projected: torch.Tensor) -> None:
        """Store this step's keys and values; `projected` is [tokens, query + 2 x key size]."""
        shape = self._shape
        fresh = projected[:, shape.query_size :].unflatten(1, (2 * shape.kv_heads, shape.head_size))
        memory.view(2 * shape.kv_heads, -1, shape.head_size).index_copy_(1, self._slots, fresh.transpose(0, 1))

    def attend(self, memory: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
        """Attention output [tokens, query size] of queries over all that `memory` holds of their sequences."""
        queries = projected[:, : self._shape.query_size]
        output = queries.new_empty(queries.shape)
        for group in self._decodes:
            output[group.rows] = self._attend_decodes(memory, queries[group.rows], group)
        for chunk in self._prefills:
            self._attend_prefill(memory, queries, output, chunk)
        return output

    def _attend_decodes(self, memory: torch.Tensor, queries: torch.Tensor, group: _Decodes) -> torch.Tensor:
        shape, count = self._shape, group.count
        heads = shape.kv_heads * count
        torch.index_select(memory, 1, group.blocks, out=group.gathered)
        kept = group.gathered.view(2, heads, -1, shape.head_size)[:, :, : group.length]
        rows = queries.unflatten(1, (shape.kv_heads, shape.groups, shape.head_size)).transpose(0, 1)
        bias, beta = (self._unused, 0) if group.mask is None else (group.mask, 1)
        scores = torch.baddbmm(
            bias,
            rows.reshape(heads, shape.groups, shape.head_size),
            kept[0].transpose(1, 2),
            beta=beta,
            alpha=self._scale,
        )
        mixed = torch.bmm(scores.softmax(-1), kept[1])
        by_head = mixed.view(shape.kv_heads, count, shape.groups * shape.head_size)
        return by_head.transpose(0, 1).reshape(count, shape.query_size)

    def _attend_prefill(
        self, memory: torch.Tensor, queries: torch.Tensor, output: torch.Tensor, chunk: _Prefill
    ) -> None:
        shape = self._shape
        torch.index_select(memory, 1, chunk.blocks, out=chunk.gathered)
        kept = chunk.gathered.view(2, shape.kv_heads, -1, shape.head_size)
        split = (shape.kv_heads, shape.groups, shape.head_size)
        for offset in range(0, chunk.tokens, QUERY_BLOCK):
            count = min(QUERY_BLOCK, chunk.tokens - offset)
            rows = slice(chunk.first_row + offset, chunk.first_row + offset + count)
            end = chunk.start + offset + count
            by_head = queries[rows].unflatten(1, split).permute(1, 2, 0, 3)
            scores = torch.baddbmm(
                self._unused,
                by_head.reshape(shape.kv_heads, shape.groups * count, shape.head_size),
                kept[0, :, :end].transpose(1, 2),
                beta=0,
                alpha=self._scale,
            )
            newest = scores.view(shape.kv_heads, shape.groups, count, end)[..., end - count :]
            newest.add_(self._causal[:count, :count])
            mixed = torch.bmm(scores.softmax(-1), kept[1, :, :end])
            shaped = mixed.view(shape.kv_heads, shape.groups, count, shape.head_size)
            output[rows].unflatten(1, split).copy_(shaped.permute(2, 0, 1, 3))

    def _on_device(self, group: DecodeGroup) -> _Decodes:
        count, width = group.blocks.shape
        lengths = group.context_lengths
        longest = int(lengths[0])
        rows = slice(group.first_row, group.first_row + count)
        blocks = torch.from_numpy(group.blocks.reshape(-1)).to(self._like.device)
        if int(lengths[-1]) == longest:
            return _Decodes(rows, count, blocks, self._room(blocks), longest, None)
        length = width * BLOCK_TOKENS
        beyond = torch.arange(length) >= torch.from_numpy(lengths)[:, None]
        mask = torch.zeros(count, 1, length).masked_fill_(beyond[:, None], -math.inf).to(self._like)
        full = mask.expand(self._shape.kv_heads, count, self._shape.groups, length)
        mask = full.reshape(-1, self._shape.groups, length)
        return _Decodes(rows, count, blocks, self._room(blocks), length, mask)

    def _chunk_on_device(self, chunk: PrefillChunk) -> _Prefill:
        blocks = torch.from_numpy(chunk.blocks).to(self._like.device)
        return _Prefill(chunk.first_row, chunk.tokens, chunk.start, blocks, self._room(blocks))

    def _room(self, blocks: torch.Tensor) -> torch.Tensor:
        """Memory for what a gather of these blocks gives."""
        shape = self._shape
        return self._like.new_empty((2 * shape.kv_heads, len(blocks), BLOCK_TOKENS * shape.head_size))
