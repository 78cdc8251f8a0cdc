"""Which attention kernel computes which rows of a step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pagefleet_engine.kernels import early_gemm
from pagefleet_engine.kernels.attention_sections import SECTION_HEADS, choose_sections
from pagefleet_engine.kernels.decode_attention import (
    choose_decode_config,
    choose_splits,
    decode_attention,
    decode_scratch,
)
from pagefleet_engine.kernels.launches import Launches
from pagefleet_engine.kernels.prefill_attention import prefill_attention
from pagefleet_engine.models.config import ModelConfig

_EARLY_DECODES = range(48, early_gemm.MAX_ROWS + 1)
"""So many decodes' attention is set up while the kernel before ends; with fewer, what the product after it brings ahead
gets into their way (see bench/LOG.md)."""


@dataclass(frozen=True, slots=True)
class DensePrompt:
    """Whole prompts of one length whose rows follow each other: `prompts` x `tokens` rows from `first_row` on."""

    first_row: int
    prompts: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PagedChunks:
    """Chunks that read earlier pages, or are short: rows from `first_row` on; int32 tensors of n, n + 1, n."""

    first_row: int
    rows: int
    seats: torch.Tensor
    token_offsets: torch.Tensor
    starts: torch.Tensor
    longest: int
    max_context: int


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What attention reads of a step: block tables by seat, `decode_rows` rows first, then chunks."""

    block_tables: torch.Tensor
    decode_rows: int
    seats: torch.Tensor
    context_lengths: torch.Tensor
    paged: PagedChunks | None = None
    dense: Sequence[DensePrompt] = ()


class Attention:
    """The kernels with this model's constants."""

    def __init__(
        self, config: ModelConfig, device: torch.device, dtype: torch.dtype, *, max_decodes: int, batch_invariant: bool
    ) -> None:
        self._config, self._batch_invariant = config, batch_invariant
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        half = dtype in {torch.bfloat16, torch.float16}
        plain = config.attention_soft_cap is None and all(layer.window is None for layer in config.attention)
        self._hopper = torch.cuda.get_device_capability(device) >= (9, 0)
        self.dense_allowed = plain and not batch_invariant and half and self._hopper
        """Whether whole prompts may go to cuDNN."""
        split_rows = max(rows * self._splits(rows) for rows in range(1, max_decodes + 1))
        split_rows = max(split_rows, SECTION_HEADS // config.heads)
        self._scratch = decode_scratch(max_decodes, split_rows, config.heads, config.head_size, device)

    def _splits(self, decodes: int) -> int:
        return choose_splits(decodes, self._config.kv_heads, self._multiprocessors)

    def backends(self, step: AttentionStep) -> AbstractContextManager[None]:
        """Enter once around a step's layers: which library computes its whole prompts."""
        if not step.dense:
            return nullcontext()
        chosen: AbstractContextManager[None] = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])
        return chosen

    def attend(
        self, qkv: torch.Tensor, memory: torch.Tensor, window: int | None, step: AttentionStep,
        out: torch.Tensor | None = None, kept: Launches | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """[rows, heads x head size] for the step's rows of `qkv`, whose keys and values are in `memory` already.

        Rows of `out` ([at least rows, heads x head size], contiguous) beyond the step's stay as they are; without it
        there may be such rows, which hold anything. Launches are put into `kept`.
        """
        config = self._config
        if out is None and len(step.dense) == 1 and step.paged is None and not step.decode_rows:
            return self._whole_prompts(qkv, step.dense[0]).flatten(2).flatten(0, 1)
        queries = qkv[:, : config.heads * config.head_size].unflatten(1, (config.heads, config.head_size))
        mixed = (
            torch.empty_like(queries, memory_format=torch.contiguous_format) if out is None else out.view_as(queries)
        )
        if step.decode_rows:
            self._decode(queries, memory, window, step, mixed, kept)
        for dense in step.dense:
            rows = mixed[dense.first_row : dense.first_row + dense.prompts * dense.tokens]
            rows.view(dense.prompts, dense.tokens, *rows.shape[1:]).copy_(self._whole_prompts(qkv, dense))
        if step.paged is not None:
            self._chunks(queries, memory, window, step, step.paged, mixed, kept)
        return mixed.flatten(1)

    def _decode(
        self, queries: torch.Tensor, memory: torch.Tensor, window: int | None, step: AttentionStep, out: torch.Tensor,
        kept: Launches | None,
    ) -> None:  # fmt: skip
        config, rows = self._config, step.decode_rows
        if self._batch_invariant:
            self._one_token_chunks(queries, memory, window, step, out, kept)
            return
        splits = self._splits(rows)
        crowd = rows * config.kv_heads * splits / self._multiprocessors
        decode_attention(
            queries[:rows], memory, step.block_tables, step.seats, step.context_lengths, out[:rows],
            scale=config.query_scale, splits=splits, window=window, soft_cap=config.attention_soft_cap,
            scratch=self._scratch, kept=kept, pdl=self._hopper and rows in _EARLY_DECODES,
            config=choose_decode_config(config.head_size, memory.element_size(), splits, crowd),
        )  # fmt: skip

    def _one_token_chunks(
        self, queries: torch.Tensor, memory: torch.Tensor, window: int | None, step: AttentionStep, out: torch.Tensor,
        kept: Launches | None,
    ) -> None:  # fmt: skip
        """Decodes through the prefill kernel: the same sums as when the token is part of a prompt."""
        rows = step.decode_rows
        offsets = torch.arange(rows + 1, dtype=torch.int32, device=queries.device)
        starts = step.context_lengths - 1
        chunks = PagedChunks(0, rows, step.seats, offsets, starts, longest=1, max_context=0)
        self._chunks(queries, memory, window, step, chunks, out, kept)

    def _chunks(
        self, queries: torch.Tensor, memory: torch.Tensor, window: int | None, step: AttentionStep,
        chunks: PagedChunks, out: torch.Tensor, kept: Launches | None,
    ) -> None:  # fmt: skip
        config, rows = self._config, slice(chunks.first_row, chunks.first_row + chunks.rows)
        sections = choose_sections(
            chunks.rows, chunks.max_context, config.heads, config.kv_heads, self._multiprocessors
        )
        prefill_attention(
            queries[rows], memory, step.block_tables, chunks.seats, chunks.token_offsets, chunks.starts, out[rows],
            scale=config.query_scale, max_tokens=chunks.longest, window=window, soft_cap=config.attention_soft_cap,
            sections=1 if self._batch_invariant else sections, scratch=self._scratch, kept=kept,
        )  # fmt: skip

    def _whole_prompts(self, qkv: torch.Tensor, dense: DensePrompt) -> torch.Tensor:
        """[prompts, tokens, heads, head size]."""
        config = self._config
        rows = qkv[dense.first_row : dense.first_row + dense.prompts * dense.tokens]
        heads = (config.heads, config.kv_heads, config.kv_heads)
        by_prompt = rows.view(dense.prompts, dense.tokens, sum(heads), config.head_size).transpose(1, 2)
        queries, keys, values = by_prompt.split(heads, 1)
        mixed: torch.Tensor = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=config.query_scale, enable_gqa=True
        )
        return mixed.transpose(1, 2)


class LayersAttention:
    """One step's attention, layer by layer, where all layers have their rows in the same places.

    Layers with the same window differ in their memory alone: what the first launches is launched again for the rest.
    """

    def __init__(self, attention: Attention, qkv: torch.Tensor, step: AttentionStep, out: torch.Tensor | None) -> None:
        self._attention, self._qkv, self._step, self._out = attention, qkv, step, out
        self._again: dict[int | None, Callable[[object], None]] = {}

    def attend(self, memory: torch.Tensor, window: int | None) -> torch.Tensor:
        """As `Attention.attend` with the step's rows. The result is the next layer's too."""
        again = self._again.get(window)
        if again is not None and self._out is not None:
            again(memory)
            return self._out
        # the library that attends to whole prompts launches in its own way
        kept = None if self._step.dense else Launches()
        attended = self._attention.attend(self._qkv, memory, window, self._step, self._out, kept)
        if kept is not None:
            self._out = attended
            if kept.repeatable:
                self._again[window] = kept.exchanging(memory)
        return attended
