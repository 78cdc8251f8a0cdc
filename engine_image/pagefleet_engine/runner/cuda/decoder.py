"""A decoder on a GPU: fused kernels around matrix products, keys and values in pages.

A layer is eight launches for a decode: projection, rotation with the KV write, attention (with its combination),
output, residual sum with the next norm, gate and up with the activation, down, residual sum with the next norm.
"""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch.nn import functional

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.kernels import activation, early_gemm, gated_gemm, gemv, invariant_gemm, norm, rope
from pagefleet_engine.models import rotary
from pagefleet_engine.models.adapters import Adapters
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.layers import LayerWeights, TopWeights
from pagefleet_engine.runner.cuda import experts
from pagefleet_engine.runner.cuda.adapting import Adapting, Linear
from pagefleet_engine.runner.cuda.attention import Attention, AttentionStep
from pagefleet_engine.runner.cuda.early import Early
from pagefleet_engine.runner.cuda.packing import DENSE_MIN_TOKENS
from pagefleet_engine.runner.cuda.rows import DeviceStep, StepRows

Reduce = Callable[[torch.Tensor], torch.Tensor]

FEW_ROWS = 8
"""Up to so many rows the fused products beat the library's (see bench/LOG.md)."""
MANY_ROWS = 1024
"""From so many rows on a pass over them costs more than a sum inside a product (likewise)."""


class _NormOptions(TypedDict):
    eps: float
    unit_offset: bool
    round_first: bool


class CudaDecoder:
    """Weights and KV memory of one model, or of one rank's part of it."""

    def __init__(
        self, config: ModelConfig, layers: list[LayerWeights], top: TopWeights, *, max_positions: int,
        max_decodes: int, batch_invariant: bool = False, reduce: Reduce | None = None,
        adapters: Adapters | None = None,
    ) -> None:  # fmt: skip
        """`config` has this rank's heads and sizes. `reduce` sums a rank's rows over all ranks, if there are."""
        self.config, self.top, self.layers = config, top, layers
        self.dtype, self.device = top.embedding.dtype, top.embedding.device
        self._linear: Linear = invariant_gemm.linear if batch_invariant else functional.linear
        self._adapting = Adapting(adapters, self._linear)
        self._alone = reduce is None and not batch_invariant
        self._reduce: Reduce = reduce or (lambda partial: partial)
        # rounded first, as transformers does
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=self.dtype))
        self._norms = _NormOptions(
            eps=config.norm_eps, unit_offset=config.norm_unit_offset, round_first=config.norm_placement != "post"
        )
        self._rotary = [table.to(self.device) for table in rotary.tables(config, max_positions)]
        self._early = Early(config, layers, self.device, in_parts=self._alone and not self.adapted)
        self.attention = Attention(
            config, self.device, self.dtype, max_decodes=max_decodes, batch_invariant=batch_invariant
        )
        self.memory: list[torch.Tensor] = []

    @property
    def adapted(self) -> bool:
        """Whether there are adapters, so that each row's has to be told."""
        return self._adapting.needed

    @property
    def qkv_size(self) -> int:
        """Elements of one row's queries, keys and values."""
        return (self.config.heads + 2 * self.config.kv_heads) * self.config.head_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on this device."""
        tensors = [*self.top_tensors(), *(tensor for layer in self.layers for tensor in layer.tensors())]
        tensors += self._adapting.tensors
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())

    def top_tensors(self) -> tuple[torch.Tensor, ...]:
        """Embedding, final norm and head."""
        return self.top.embedding, self.top.final_norm, self.top.head

    def allocate(self, num_blocks: int) -> None:
        """Make the KV memory, with one block more, which padding writes to."""
        shape = (num_blocks + 1, 2, self.config.kv_heads, BLOCK_TOKENS, self.config.head_size)
        self.memory = []  # before the new memory is taken
        self.memory = [torch.empty(shape, dtype=self.dtype, device=self.device) for _ in range(self.config.layers)]

    def forward(self, step: DeviceStep, kept: torch.Tensor | None = None) -> torch.Tensor:
        """Compute all rows and store their keys and values; the rows before the final norm, [rows, hidden size].

        With `kept` ([n] int32) only these rows are finished and given: the others' last layer matters to nobody.
        """
        count, rows = len(step.rows.tokens), step.rows
        residual = self.new_rows(count, self.config.hidden_size)
        qkv = self.new_rows(count, self.qkv_size)
        self.begin(rows, residual, qkv)
        with self.attention.backends(step.attention):
            for index in range(self.config.layers - 1):
                self.proceed(index, rows, self.attend(index, qkv, step.attention), residual, qkv)
            attended = self.attend(self.config.layers - 1, qkv, step.attention)
        return self.finish(attended, residual, rows.adapters, kept)

    def finish(
        self, attended: torch.Tensor, residual: torch.Tensor, adapters: torch.Tensor, kept: torch.Tensor | None
    ) -> torch.Tensor:
        """The rows `kept` (None: all) after the last layer's attention to the layer's end."""
        if kept is not None and len(kept) == 0:
            return residual[:0]  # nobody samples, so that nothing is left to compute
        if kept is not None:
            attended, residual = attended.index_select(0, kept), residual.index_select(0, kept)
            adapters = adapters.index_select(0, kept) if self.adapted else adapters
        self._after_attention(self.config.layers - 1, attended, residual, adapters, None)
        return residual

    def forward_few(self, step: DeviceStep) -> torch.Tensor:
        """As `forward`, for a handful of rows: reading the weights once is all that counts then, so norms, gate and
        residual sums are part of the products. Only where `few_rows_fit`."""
        config, rows = self.config, step.rows
        residual = self._embed(rows, self.new_rows(len(rows.tokens), config.hidden_size))
        for index, layer in enumerate(self.layers):
            qkv = gemv.linear(residual, layer.qkv, norm=self._fused(layer.input_norm), bias=layer.qkv_bias)
            self._rotate(index, rows, qkv)
            attended = self.attend(index, qkv, step.attention)
            gemv.linear_add_(attended, layer.output, residual, delta_scale=config.residual_scale)
            inner = self._gated_few(index, residual, rows.adapters)
            gemv.linear_add_(inner, _there(layer.down), residual, delta_scale=config.residual_scale)
        return residual

    def _gated_few(self, index: int, residual: torch.Tensor, adapters: torch.Tensor) -> torch.Tensor:
        layer = self.layers[index]
        if len(residual) == 1 or not gated_gemm.pays(residual, _there(layer.gate_up)):
            norm_before = self._fused(layer.mlp_norm)
            return gemv.gated_linear(residual, _there(layer.gate_up), self.config.activation, norm=norm_before)
        return self._gated(index, self._normed(residual, _there(layer.mlp_norm)), adapters)

    def few_rows_fit(self, rows: int) -> bool:
        """Whether `forward_few` can compute so many rows of this model, and is the faster way."""
        config = self.config
        plain = config.norm_placement == "pre" and config.head_norm != "all" and config.experts is None
        plain = plain and self._alone and not self.adapted and not self._early.brings_layers(rows)
        return rows <= FEW_ROWS and plain and gemv.fits(rows, self.layers[0].qkv)

    def _fused(self, weight: torch.Tensor | None) -> gemv.Norm:
        return gemv.Norm(_there(weight), self.config.norm_eps, self.config.norm_unit_offset)

    def new_rows(self, rows: int, width: int) -> torch.Tensor:
        """Room for rows in the model's number format."""
        return torch.empty((rows, width), dtype=self.dtype, device=self.device)

    def begin(self, rows: StepRows, residual: torch.Tensor, qkv: torch.Tensor) -> None:
        """Embed the rows into `residual`, and project them for the first layer into `qkv`, which is cached."""
        self._embed(rows, residual)
        weight = self.layers[0].input_norm
        self._project(0, rows, residual if weight is None else self._normed(residual, weight), qkv)

    def _embed(self, rows: StepRows, residual: torch.Tensor) -> torch.Tensor:
        torch.index_select(self.top.embedding, 0, rows.tokens, out=residual)
        if self.config.embedding_scale != 1.0:
            residual.mul_(self._embedding_scale)
        return residual

    def attend(self, index: int, qkv: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Layer `index`'s attention of the first rows of `qkv`, as many as `step` has."""
        return self.attention.attend(qkv, self.memory[index], self.config.attention[index].window, step)

    def proceed(
        self, index: int, rows: StepRows, attended: torch.Tensor | None, residual: torch.Tensor, qkv: torch.Tensor
    ) -> None:
        """From layer `index`'s attention to the next layer's `qkv`; without `attended` it was joined already."""
        following = self.layers[index + 1].input_norm
        normed = self._after_attention(index, attended, residual, rows.adapters, following)
        self._project(index + 1, rows, normed, qkv)

    def join(self, index: int, attended: torch.Tensor, residual: torch.Tensor) -> None:
        """Add layer `index`'s attention to the residual; only where `sums_in_products`."""
        torch.addmm(residual, attended, self.layers[index].output.t(), out=residual)

    def sums_in_products(self, rows: int) -> bool:
        """Whether the products add to the residual: with many rows it saves the norm after them a pass over all."""
        plain = self.config.norm_placement == "pre" and self.config.residual_scale == 1.0
        plain = plain and self.config.experts is None and not self.adapted
        return self._alone and plain and rows >= MANY_ROWS

    def _after_attention(
        self, index: int, attended: torch.Tensor | None, residual: torch.Tensor, adapters: torch.Tensor,
        following: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        layer = self.layers[index]
        if attended is None or self.sums_in_products(len(residual)):
            if attended is not None:
                torch.addmm(residual, attended, layer.output.t(), out=residual)
            normed = self._normed(residual, _there(layer.mlp_norm))
            torch.addmm(residual, self._gated(index, normed, adapters), _there(layer.down).t(), out=residual)
            return residual if following is None else self._normed(residual, following)
        if following is not None and self._early.brings(len(residual), layer.down):
            delta = self._early.product(attended, layer.output)
            normed = self._add(delta, residual, layer.post_attention_norm, layer.mlp_norm)
            delta = self._early.product(self._gated(index, normed, adapters), _there(layer.down))
            return self._add(delta, residual, layer.post_mlp_norm, following)
        delta = self._reduce(self._adapted_linear(index, "output", attended, layer.output, adapters))
        normed = self._add(delta, residual, layer.post_attention_norm, layer.mlp_norm)
        return self._add(self._mlp(index, normed, adapters), residual, layer.post_mlp_norm, following)

    def _adapted_linear(
        self, index: int, product: str, rows: torch.Tensor, weight: torch.Tensor, adapters: torch.Tensor
    ) -> torch.Tensor:
        return self._adapting.add_(index, product, rows, self._linear(rows, weight, None), adapters)

    def _gated(self, index: int, normed: torch.Tensor, adapters: torch.Tensor) -> torch.Tensor:
        gate_up = _there(self.layers[index].gate_up)
        if self._linear is functional.linear and not self.adapted and gated_gemm.pays(normed, gate_up):
            return gated_gemm.gated_product(normed, gate_up, self.config.activation)
        return activation.gated(
            self._adapted_linear(index, "gate_up", normed, gate_up, adapters),
            self.config.activation,
            # of many rows it would be the largest tensor of a step beside the one that it is made from
            in_place=self._alone and len(normed) >= MANY_ROWS,
            pdl=self._early.sets_up(len(normed)),
        )

    def logits(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Next-token logits of some rows of `forward`'s result, written to `out` [rows, vocabulary] and returned."""
        config = self.config
        self._linear_into(self._normed(hidden, self.top.final_norm), self.top.head, None, out)
        if config.logit_scale != 1.0:
            out.mul_(config.logit_scale)
        if config.logit_soft_cap is not None:
            out.div_(config.logit_soft_cap).tanh_().mul_(config.logit_soft_cap)
        return out

    def _project(self, index: int, rows: StepRows, normed: torch.Tensor, qkv: torch.Tensor) -> None:
        """Layer `index`'s queries, keys and values, normed and rotated, in `qkv` and (the latter two) in the cache."""
        config, layer = self.config, self.layers[index]
        if self._early.projects(len(normed), layer):
            self._rotate(index, rows, qkv, early_gemm.partial_product(normed, layer.qkv))
            return
        self._linear_into(normed, layer.qkv, layer.qkv_bias, qkv)
        self._adapting.add_(index, "qkv", normed, qkv, rows.adapters)
        if config.head_norm == "all" and layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
            for first, size, weight in ((0, queries, layer.query_norm), (queries, keys, layer.key_norm)):
                part = qkv[:, first : first + size]
                norm.rms_norm(part, weight, out=part, **self._norms)
        self._rotate(index, rows, qkv)

    def _rotate(self, index: int, rows: StepRows, qkv: torch.Tensor, parts: torch.Tensor | None = None) -> None:
        config, layer, how = self.config, self.layers[index], self.config.attention[index]
        per_head = config.head_norm == "head"
        table, rotary_size = (None, 0) if how.rope is None else (self._rotary[how.rope], config.ropes[how.rope].size)
        rope.rope_and_cache(
            qkv, rows.positions, table, rows.slots, self.memory[index],
            heads=config.heads, kv_heads=config.kv_heads, head_size=config.head_size, rotary_size=rotary_size,
            query_norm=layer.query_norm if per_head else None, key_norm=layer.key_norm if per_head else None,
            eps=config.norm_eps, unit_offset=config.norm_unit_offset,
            # whole prompts are attended to from here, and only they come in so many rows
            keys_in_place=len(qkv) >= DENSE_MIN_TOKENS, parts=parts, pdl=self._early.sets_up(len(qkv)),
        )  # fmt: skip

    def _linear_into(
        self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        if self._linear is not functional.linear:
            out.copy_(self._linear(rows, weight, bias))
        elif bias is None:
            torch.mm(rows, weight.t(), out=out)
        else:
            torch.addmm(bias, rows, weight.t(), out=out)

    def _mlp(self, index: int, normed: torch.Tensor, adapters: torch.Tensor) -> torch.Tensor:
        config, layer = self.config, self.layers[index]
        if config.experts is not None and layer.router is not None:
            return self._reduce(experts.mixed(normed, layer, config.experts, config, self._linear))
        inner = self._gated(index, normed, adapters)
        return self._reduce(self._adapted_linear(index, "down", inner, _there(layer.down), adapters))

    def _add(
        self, delta: torch.Tensor, residual: torch.Tensor, post: torch.Tensor | None, following: torch.Tensor | None
    ) -> torch.Tensor:
        """Add to the residual in place, normed first where the family does so; what the next part reads."""
        scale, early = self.config.residual_scale, self._early.sets_up(len(residual))
        if post is not None:
            return norm.sandwich(delta, post, residual, following, delta_scale=scale, **self._norms, pdl=early)
        if following is None:
            return residual.add_(delta, alpha=scale)
        return norm.add_rms_norm(delta, residual, following, delta_scale=scale, **self._norms, pdl=early)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return norm.rms_norm(rows, weight, **self._norms, pdl=self._early.sets_up(len(rows)))


def _there(weight: torch.Tensor | None) -> torch.Tensor:
    if weight is None:
        raise ValueError("the layer lacks a weight that its family has")
    return weight
