"""Head norms, rotary embedding and the write into the paged KV memory in one kernel.

The rotation pairs dimension d with d + rotary_size / 2 (Hugging Face's order). Cosines, sines and the
products are float32; only the result is rounded.
"""

import torch
import triton
import triton.language as tl

from pagefleet_engine.kernels.norm import summed
from pagefleet_engine.kernels.overlap import wait_for_inputs

_BLOCK_TOKENS = 16
_HEADS_PER_PROGRAM = 8
_MANY_TOKENS = 1024


@triton.jit
def _rotate(
    source, heads, norm_weight, cosines, sines, eps, part_stride, PARTS: tl.constexpr, dtype: tl.constexpr,
    NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr, LIMIT: tl.constexpr,
    PROGRAM_HEADS: tl.constexpr,
):  # fmt: skip
    """The first and second rotated half and the rest of `PROGRAM_HEADS` heads of one token, in float32."""
    half = tl.arange(0, HALF_BLOCK)[None, :]
    rest = tl.arange(0, REST_BLOCK)[None, :]
    inside = (half < HALF) & (heads < LIMIT)
    rest_inside = (rest < REST) & (heads < LIMIT)
    start = source + heads * HEAD
    first = summed(start + half, inside, part_stride, PARTS, dtype)
    second = summed(start + HALF + half, inside, part_stride, PARTS, dtype)
    remaining = tl.zeros((PROGRAM_HEADS, REST_BLOCK), tl.float32)
    if REST > 0:
        remaining = summed(start + 2 * HALF + rest, rest_inside, part_stride, PARTS, dtype)
    if NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        if REST > 0:
            squares += tl.sum(remaining * remaining, axis=1)
        scale = tl.rsqrt(squares / HEAD + eps)[:, None]
        first = _weighted(first * scale, norm_weight + half, half < HALF, dtype, UNIT_OFFSET)
        second = _weighted(second * scale, norm_weight + HALF + half, half < HALF, dtype, UNIT_OFFSET)
        if REST > 0:
            remaining = _weighted(
                remaining * scale, norm_weight + 2 * HALF + rest, rest < REST, dtype, UNIT_OFFSET
            )  # fmt: skip
    return first * cosines - second * sines, second * cosines + first * sines, remaining


@triton.jit
def _weighted(scaled, weights, inside, dtype: tl.constexpr, UNIT_OFFSET: tl.constexpr):
    """`scaled` times its norm's weights with transformers' roundings to the model dtype."""
    weight = tl.load(weights, mask=inside, other=0.0).to(tl.float32)
    if UNIT_OFFSET:
        return (scaled * (weight + 1.0)).to(dtype).to(tl.float32)
    return (scaled.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)


@triton.jit
def _store(
    target, heads, head_stride, first, second, remaining, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr, REST_BLOCK: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    half = tl.arange(0, HALF_BLOCK)[None, :]
    rest = tl.arange(0, REST_BLOCK)[None, :]
    inside = (half < HALF) & (heads < LIMIT)
    dtype = target.dtype.element_ty
    start = target + heads * head_stride
    tl.store(start + half, first.to(dtype), mask=inside)
    tl.store(start + HALF + half, second.to(dtype), mask=inside)
    if REST > 0:
        tl.store(start + 2 * HALF + rest, remaining.to(dtype), mask=(rest < REST) & (heads < LIMIT))


@triton.jit
def _rope_kernel(
    source, qkv, positions, table, slots, kv, query_norm, key_norm, source_stride, qkv_stride, part_stride, eps,
    PARTS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr, REST: tl.constexpr, REST_BLOCK: tl.constexpr, HEAD_BLOCK: tl.constexpr,
    PROGRAM_HEADS: tl.constexpr, QUERY_PROGRAMS: tl.constexpr, KV_PROGRAMS: tl.constexpr, ROTATE: tl.constexpr,
    QUERY_NORM: tl.constexpr, KEY_NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr, KEYS_IN_PLACE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    projected = source + token * source_stride
    row = qkv + token * qkv_stride
    dtype: tl.constexpr = qkv.dtype.element_ty
    local_heads = tl.arange(0, PROGRAM_HEADS)[:, None]
    wait_for_inputs(PDL)
    slot = tl.load(slots + token).to(tl.int64)
    head_stride = BLOCK_TOKENS * HEAD
    page = kv + (slot // BLOCK_TOKENS) * (2 * KV_HEADS * head_stride) + (slot % BLOCK_TOKENS) * HEAD
    if program < QUERY_PROGRAMS + KV_PROGRAMS:
        half = tl.arange(0, HALF_BLOCK)[None, :]
        if ROTATE:
            angle = table + tl.load(positions + token).to(tl.int64) * (2 * HALF) + half
            cosines = tl.load(angle, mask=half < HALF, other=0.0)
            sines = tl.load(angle + HALF, mask=half < HALF, other=0.0)
        else:
            cosines = tl.full((1, HALF_BLOCK), 1.0, tl.float32)
            sines = tl.zeros((1, HALF_BLOCK), tl.float32)
        if program < QUERY_PROGRAMS:
            heads = program * PROGRAM_HEADS + local_heads
            if ROTATE or QUERY_NORM or PARTS > 0:
                first, second, remaining = _rotate(
                    projected, heads, query_norm, cosines, sines, eps, part_stride, PARTS, dtype,
                    QUERY_NORM, UNIT_OFFSET, HEAD, HALF, HALF_BLOCK, REST, REST_BLOCK, HEADS, PROGRAM_HEADS,
                )  # fmt: skip
                _store(row, heads, HEAD, first, second, remaining, HALF, HALF_BLOCK, REST, REST_BLOCK, HEADS)
        else:
            heads = (program - QUERY_PROGRAMS) * PROGRAM_HEADS + local_heads
            keys = row + HEADS * HEAD
            first, second, remaining = _rotate(
                projected + HEADS * HEAD, heads, key_norm, cosines, sines, eps, part_stride, PARTS, dtype,
                KEY_NORM, UNIT_OFFSET, HEAD, HALF, HALF_BLOCK, REST, REST_BLOCK, KV_HEADS, PROGRAM_HEADS,
            )  # fmt: skip
            _store(page, heads, head_stride, first, second, remaining, HALF, HALF_BLOCK, REST, REST_BLOCK, KV_HEADS)
            if KEYS_IN_PLACE:
                _store(keys, heads, HEAD, first, second, remaining, HALF, HALF_BLOCK, REST, REST_BLOCK, KV_HEADS)
    else:
        heads = (program - QUERY_PROGRAMS - KV_PROGRAMS) * PROGRAM_HEADS + local_heads
        dimensions = tl.arange(0, HEAD_BLOCK)[None, :]
        inside = (dimensions < HEAD) & (heads < KV_HEADS)
        places = (HEADS + KV_HEADS + heads) * HEAD + dimensions
        values = summed(projected + places, inside, part_stride, PARTS, dtype)
        tl.store(page + (KV_HEADS + heads) * head_stride + dimensions, values.to(dtype), mask=inside)
        if KEYS_IN_PLACE and PARTS > 0:
            tl.store(row + places, values.to(dtype), mask=inside)


def rope_and_cache(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rotary_table: torch.Tensor | None,
    slots: torch.Tensor,
    kv: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_size: int,
    rotary_size: int,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
    unit_offset: bool = False,
    keys_in_place: bool = False,
    parts: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Norm and rotate the queries in place; write normed, rotated keys and the values to their slots.

    `qkv` [tokens, (heads + 2 · kv_heads) · head_size], rows may be strided; `positions` and `slots` int32
    [tokens]; `rotary_table` float32 [max_positions, rotary_size], cosines then sines, None for a layer without
    positions; `kv` [blocks + 1, 2, kv_heads, 16, head_size]; norm weights [head_size]. Dimensions from
    `rotary_size` on pass through. `keys_in_place` leaves the finished keys in `qkv` too. With `parts`,
    float32 [parts, tokens, as `qkv`], what is rotated is their sum, and `qkv` is only written (`early_gemm`): the
    queries, and with `keys_in_place` all.
    """
    tokens = qkv.shape[0]
    if tokens == 0:
        return
    if rotary_table is None:
        rotary_size = head_size  # all of a head goes through as two halves that do not turn
    half, rest = rotary_size // 2, head_size - rotary_size
    program_heads = min(_HEADS_PER_PROGRAM, triton.next_power_of_2(heads)) * (2 if tokens >= _MANY_TOKENS else 1)
    query_programs, kv_programs = triton.cdiv(heads, program_heads), triton.cdiv(kv_heads, program_heads)
    source = qkv if parts is None else parts
    _rope_kernel[(tokens, query_programs + 2 * kv_programs)](
        source, qkv, positions, positions if rotary_table is None else rotary_table, slots, kv,
        qkv if query_norm is None else query_norm, qkv if key_norm is None else key_norm,
        source.stride(-2), qkv.stride(0), source.stride(0), eps, PARTS=0 if parts is None else len(parts),
        HEADS=heads, KV_HEADS=kv_heads, HEAD=head_size, HALF=half, HALF_BLOCK=triton.next_power_of_2(half),
        REST=rest, REST_BLOCK=triton.next_power_of_2(max(rest, 1)), HEAD_BLOCK=triton.next_power_of_2(head_size),
        PROGRAM_HEADS=program_heads, QUERY_PROGRAMS=query_programs, KV_PROGRAMS=kv_programs,
        ROTATE=rotary_table is not None, QUERY_NORM=query_norm is not None, KEY_NORM=key_norm is not None,
        UNIT_OFFSET=unit_offset, KEYS_IN_PLACE=keys_in_place, BLOCK_TOKENS=_BLOCK_TOKENS, PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
