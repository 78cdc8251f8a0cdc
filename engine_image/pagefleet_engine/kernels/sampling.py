"""Draws next tokens on the GPU: greedy, or by the Gumbel-max trick with noise that needs no state.

The token is the one with the largest key, logit + temperature · g, where g = -log(E) is standard Gumbel noise and
E = -log(1 - v). v is uniform in (0, 1), a hash of seed, position and token id alone, so that an answer is the
same in any batch and after a preemption:

    key  = splitmix64's output for the counter seed and position (as `runner.noise` mixes them), 64 bits
    h    = fold(token · 0x9E3779B9 + low(key), 0xB7E15163) ^ high(key); h = fold(h, 0xBB67AE85) ^ low(key)
           fold(x, m) is the upper half of the product's 64 bits ^ the lower half
    v    = min((h + 0.5) · 2⁻³², 1 - 2⁻²⁴)

A fold is no permutation, but what meets its result is uniform and independent of it, so each token's h is uniform.
The multipliers are the fractions of the golden ratio, e and √3. Small v keeps all its bits, and E is a series there:
what wins has a small E.

E is more than v, and hardly more where v is small, so logit - temperature · log(v) bounds a token's key from above. The
first kernel finds but the highest bound of each chunk; the second computes the keys of the chunk with the highest one,
and of another chunk only where its bound reaches the best key so far.
"""

import torch
import triton
import triton.language as tl

from pagefleet_engine.steps import MIN_TEMPERATURE

Cut = tuple[int, int]
"""Tokens and warps of one program."""

_FEW_ROWS = 16
_DRAWING_WARPS = 4
_LN_2 = tl.constexpr(0.6931471805599453)
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter knows no assembly, and is slow where a reduction is not its own."""


@triton.jit
def _mixed(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _fold(bits, multiplier):
    """Both halves of a product in one; Triton's own would be computed in 64 bits to the end."""
    if _INTERPRETED:
        product = bits.to(tl.uint64) * multiplier
        return (product >> 32).to(tl.uint32) ^ product.to(tl.uint32)
    return tl.inline_asm_elementwise(
        """{
        .reg .b64 product; .reg .b32 low, high;
        mul.wide.u32 product, $1, $2;
        mov.b64 {low, high}, product;
        xor.b32 $0, low, high;
        }""",
        "=r,r,r", [bits, multiplier], dtype=tl.uint32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _log2(values):
    """The logarithm of positive normal numbers, by the card's own instruction: 2⁻²² off, a tenth the time."""
    if _INTERPRETED:
        return tl.log2(values)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [values], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _uniform(seed, position, tokens):
    """v of each of `tokens` for one seed and position, float32; 1 where it is too near to tell."""
    state = _mixed(seed.to(tl.uint64) + 0x9E3779B97F4A7C15)
    key = _mixed(state + (position.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15)
    low = key.to(tl.uint32)
    bits = _fold(tokens.to(tl.uint32) * 0x9E3779B9 + low, 0xB7E15163) ^ (key >> 32).to(tl.uint32)
    bits = _fold(bits, 0xBB67AE85) ^ low
    return tl.fma(bits.to(tl.float32), 2.3283064365386963e-10, 1.1641532182693481e-10)


@triton.jit
def _log2_exponential(uniform):
    """log2(E), nowhere less than log2(v) as it is computed: a key is never above its bound."""
    below = tl.minimum(uniform, 0.999999940395355)
    series = below * (1.0 + below * (0.5 + below * (1.0 / 3.0 + below * (0.25 + below * 0.2))))
    exponential = tl.where(below < 0.0625, series, -_LN_2 * _log2(1.0 - below))
    return tl.maximum(_log2(exponential), _log2(uniform))


@triton.jit
def _larger(left, right):
    return tl.maximum(left, right, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _highest(values):
    """The largest of `values`; inf where one is a NaN."""
    if _INTERPRETED:
        return tl.max(tl.where(values != values, float("inf"), values), axis=0)
    highest = tl.reduce(values, 0, _larger)
    return tl.where(highest != highest, float("inf"), highest)


@triton.jit
def _wishes(temperature, seeds, positions, seats, row, SEATED: tl.constexpr):
    """Temperature and seed of a row, and its new token's place."""
    seat = row
    if SEATED:
        seat = tl.load(seats + row)
    return tl.load(temperature + seat), tl.load(seeds + seat), tl.load(positions + row)


@triton.jit
def _chunk(logits, row, chunk, row_stride, vocab, BLOCK: tl.constexpr):
    """The tokens of one chunk and their logits, float32; -inf beyond the vocabulary."""
    tokens = chunk * BLOCK + tl.arange(0, BLOCK)
    source = logits + row.to(tl.int64) * row_stride + tokens
    return tokens, tl.load(source, mask=tokens < vocab, other=float("-inf")).to(tl.float32)


@triton.jit
def _bound_kernel(
    logits, temperature, seeds, positions, seats, bounds, row_stride, vocab,
    MIN_TEMPERATURE: tl.constexpr, SEATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The highest bound of one chunk of one row; inf where a logit is no number to choose by."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    heat, seed, position = _wishes(temperature, seeds, positions, seats, row, SEATED)
    tokens, values = _chunk(logits, row, chunk, row_stride, vocab, BLOCK)
    if heat >= MIN_TEMPERATURE:
        values = tl.fma(_log2(_uniform(seed, position, tokens)), heat * -_LN_2, values)
    tl.store(bounds + row * tl.num_programs(1) + chunk, _highest(values))


@triton.jit
def _draw_kernel(
    logits, temperature, seeds, positions, seats, bounds, tokens_out, row_stride, vocab, chunks,
    MIN_TEMPERATURE: tl.constexpr, SEATED: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The token of one row. Without noise bounds are keys, and the first chunk with the highest has the token."""
    row = tl.program_id(0)
    heat, seed, position = _wishes(temperature, seeds, positions, seats, row, SEATED)
    columns = tl.arange(0, CHUNKS)
    left = tl.load(bounds + row * chunks + columns, mask=columns < chunks, other=float("-inf"))
    bound, chunk = tl.max(left, axis=0, return_indices=True)
    usable = bound < float("inf")
    best = float("-inf")
    token = vocab
    while usable & (bound > float("-inf")) & ((bound > best) | ((bound == best) & (heat >= MIN_TEMPERATURE))):
        tokens, keys = _chunk(logits, row, chunk, row_stride, vocab, BLOCK)
        if heat >= MIN_TEMPERATURE:
            keys = tl.fma(_log2_exponential(_uniform(seed, position, tokens)), heat * -_LN_2, keys)
        key, place = tl.max(keys, axis=0, return_indices=True)
        found = chunk * BLOCK + place
        token = tl.where((key > best) | ((key == best) & (found < token)), found, token)
        best = tl.maximum(best, key)
        left = tl.where(columns == chunk, float("-inf"), left)
        bound, chunk = tl.max(left, axis=0, return_indices=True)
    tl.store(tokens_out + row, token)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    tokens_out: torch.Tensor,
    *,
    seats: torch.Tensor | None = None,
    cut: Cut | None = None,
) -> None:
    """Write the next token of each row of `logits` [rows, vocab] into `tokens_out` [rows] int32.

    `temperature` float32 and `seeds` int64 are per row, or per seat where `seats` int32 [rows] names each
    row's; `positions` int32 [rows] are the new tokens' places. Below `MIN_TEMPERATURE` the likeliest token is
    taken, of equal ones the lowest id. A row with a NaN or +inf, or with nothing but -inf, gives `vocab`,
    which is no token.
    """
    rows, vocab = logits.shape
    if rows == 0:
        return
    block, warps = cut or ((1024, 4) if rows <= _FEW_ROWS else (2048, 1))
    chunks = triton.cdiv(vocab, block)
    bounds = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    given = (logits, temperature, seeds, positions, positions if seats is None else seats, bounds)
    _bound_kernel[(rows, chunks)](
        *given, logits.stride(0), vocab, MIN_TEMPERATURE=MIN_TEMPERATURE, SEATED=seats is not None, BLOCK=block,
        num_warps=warps,
    )  # fmt: skip
    _draw_kernel[(rows,)](
        *given, tokens_out, logits.stride(0), vocab, chunks, MIN_TEMPERATURE=MIN_TEMPERATURE,
        SEATED=seats is not None, BLOCK=block, CHUNKS=triton.next_power_of_2(chunks), num_warps=_DRAWING_WARPS,
    )  # fmt: skip
