"""Min-p, top-k and top-p without sorting: one program a row searches the least logit that is kept.

Logits are compared as 32-bit keys in the same order. A search fixes two bits of the key a pass, by the weight of
what is at least each of three candidates; top-k weighs every token 1, top-p by its likelihood. Equal logits at the
found key are kept in id order up to a quota. A row's result depends on that row alone.
"""

import torch
import triton
import triton.language as tl

from pagefleet_engine.steps import MIN_TEMPERATURE

_ROUNDING = 1e-6
"""Relative slack of the sum that top-p must reach: float32 sums of the same weights differ by their order."""


@triton.jit
def _keys(values):
    """Float32 values as uint32 in the same order; -0 is 0."""
    bits = (values + 0.0).to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) == 1, ~bits, bits | 0x80000000)


@triton.jit
def _value(key):
    """The float32 value of a key."""
    bits = tl.where((key >> 31) == 1, key & 0x7FFFFFFF, ~key)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _weights(values, peak, heat, least, WEIGHTED: tl.constexpr):
    """1 or the likelihood relative to the likeliest token's, of tokens that min-p keeps; 0 for the others."""
    scaled = (values - peak) / heat
    weights = tl.full(values.shape, 1.0, tl.float32)
    if WEIGHTED:
        weights = tl.exp(scaled)
    return tl.where(scaled >= least, weights, 0.0)


@triton.jit
def _search(source, vocab, peak, heat, least, goal, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr):
    """The largest key with at least `goal` of weight at or above it (0 if none has), and the weight above it."""
    columns = tl.arange(0, BLOCK)
    key = tl.full((), 0, tl.uint32)
    above = tl.full((), 0.0, tl.float32)
    step = tl.full((), 1 << 30, tl.uint32)
    for _ in range(16):
        first = tl.zeros((BLOCK,), tl.float32)
        second = tl.zeros((BLOCK,), tl.float32)
        third = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab, BLOCK):
            values = tl.load(source + start + columns, mask=start + columns < vocab, other=float("-inf"))
            weights = _weights(values, peak, heat, least, WEIGHTED)
            keys = _keys(values)
            first += tl.where(keys >= key + step, weights, 0.0)
            second += tl.where(keys >= key + 2 * step, weights, 0.0)
            third += tl.where(keys >= key + 3 * step, weights, 0.0)
        reached_first = tl.sum(first, 0)
        reached_second = tl.sum(second, 0)
        reached_third = tl.sum(third, 0)
        if reached_third >= goal:
            key += 3 * step
        elif reached_second >= goal:
            key += 2 * step
            above = reached_third
        elif reached_first >= goal:
            key += step
            above = reached_second
        else:
            above = reached_first
        step = step >> 2
    return key, above


@triton.jit
def _cut_kernel(
    logits, out, temperature, top_k, top_p, min_p, row_stride, vocab, rounding,
    MIN_TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    source = logits + row.to(tl.int64) * row_stride
    columns = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        values = tl.load(source + start + columns, mask=start + columns < vocab, other=float("-inf"))
        largest = tl.maximum(largest, values)
    peak = tl.max(largest, 0)
    heat = tl.maximum(tl.load(temperature + row), MIN_TEMPERATURE)
    least = tl.minimum(tl.log(tl.load(min_p + row)), 0.0)
    count = tl.load(top_k + row)
    share = tl.load(top_p + row)
    key = tl.full((), 0, tl.uint32)
    quota = tl.full((), 0.0, tl.float32) + vocab
    above = tl.full((), 0.0, tl.float32)
    if (count > 0) & (count < vocab):
        key, above = _search(source, vocab, peak, heat, least, count.to(tl.float32), BLOCK, False)
        quota = count - above
    if share < 1.0:
        heavier = tl.zeros((BLOCK,), tl.float32)
        ties = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab, BLOCK):
            values = tl.load(source + start + columns, mask=start + columns < vocab, other=float("-inf"))
            weights = _weights(values, peak, heat, least, True)
            keys = _keys(values)
            heavier += tl.where(keys > key, weights, 0.0)
            ties += tl.where((keys == key) & (weights > 0.0), 1.0, 0.0)
        above = tl.sum(heavier, 0)
        tie_weight = tl.exp((_value(key) - peak) / heat)
        tied = tl.minimum(tl.sum(ties, 0), quota)
        total = above + tl.where(tied > 0.0, tied * tie_weight, 0.0)
        goal = tl.maximum(share * total * (1.0 - rounding), 1e-30)
        if above >= goal:
            key, above = _search(source, vocab, peak, heat, least, goal, BLOCK, True)
            tie_weight = tl.exp((_value(key) - peak) / heat)
            quota = tl.full((), 0.0, tl.float32) + vocab
        needed = tl.ceil((goal - above) / tl.maximum(tie_weight, 1e-30))
        quota = tl.minimum(quota, tl.maximum(needed, 1.0))
    before = tl.full((), 0.0, tl.float32)
    target = out + row.to(tl.int64) * vocab
    for start in range(0, vocab, BLOCK):
        inside = start + columns < vocab
        values = tl.load(source + start + columns, mask=inside, other=float("-inf"))
        keys = _keys(values)
        tied = (keys == key).to(tl.int32)
        rank = before + (tl.cumsum(tied, 0) - tied)
        kept = ((values - peak) / heat >= least) & ((keys > key) | ((keys == key) & (rank < quota)))
        unusable = (values != values) | (values == float("inf"))
        tl.store(target + start + columns, tl.where(kept | unusable, values, float("-inf")), mask=inside)
        before += tl.sum(tied, 0)


def restrict(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """A copy of `logits` [rows, vocab] float32 with -inf for the tokens that are cut off.

    By temperature-scaled likelihood: min-p, then top-k, then top-p over what they kept; of equal tokens the
    lower ids are kept. All parameters are [rows], `top_k` int32 and the others float32; a `top_k` of 0, a
    `top_p` of 1 and a `min_p` of 0 cut nothing. The likeliest token always stays; NaN and +inf stay as well.
    """
    rows, vocab = logits.shape
    out = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
    block = min(triton.next_power_of_2(vocab), 8192)
    if rows:
        _cut_kernel[(rows,)](
            logits, out, temperature, top_k, top_p, min_p, logits.stride(0), vocab, _ROUNDING,
            MIN_TEMPERATURE=MIN_TEMPERATURE, BLOCK=block, num_warps=16 if block == 8192 else 4,
        )  # fmt: skip
    return out
