"""Draws next tokens on the GPU: greedy, or by the Gumbel-max trick with noise that needs no state.

The token is the one with the largest logit + temperature · g, where g = -log(E) is standard Gumbel noise and
E = -log(1 - v). v is uniform in (0, 1), a hash of seed, position and token id alone, so that an answer is the
same in any batch and after a preemption:

    key  = splitmix64's output for the counter seed and position (as `runner.noise` mixes them), 64 bits
    h    = token · 0x9E3779B9 + low(key); h ^= h >> 16; h *= 0x21F0AAAD; h ^= high(key)
           h ^= h >> 15; h *= 0x735A2D97; h ^= h >> 15                   (32 bits; multipliers: hash-prospector)
    v    = min((h + 0.5) · 2⁻³², 1 - 2⁻²⁴)

Small v keeps all its bits, and E is a series there: what wins has a small E.
"""

import torch
import triton
import triton.language as tl

from pagefleet_engine.steps import MIN_TEMPERATURE

Cut = tuple[int, int]
"""Tokens and warps of one program."""

_FEW_ROWS = 16
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter knows no assembly."""


@triton.jit
def _mixed(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _log(values):
    """The natural logarithm of positive normal numbers, by the card's own instruction: 2⁻²² off, a tenth the time."""
    if _INTERPRETED:
        return tl.log(values)
    binary = tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [values], dtype=tl.float32, is_pure=True, pack=1
    )
    return binary * 0.6931471805599453


@triton.jit
def _gumbel(seed, position, tokens):
    """Noise of each of `tokens` (uint32) for one seed and position, float32."""
    state = _mixed(seed.to(tl.uint64) + 0x9E3779B97F4A7C15)
    key = _mixed(state + (position.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15)
    bits = tokens * 0x9E3779B9 + key.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = bits ^ (key >> 32).to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * 0x735A2D97
    bits = bits ^ (bits >> 15)
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355)
    series = uniform * (1.0 + uniform * (0.5 + uniform * (1.0 / 3.0 + uniform * (0.25 + uniform * 0.2))))
    return -_log(tl.where(uniform < 0.0625, series, -_log(1.0 - uniform)))


@triton.jit
def _partial_kernel(
    logits, temperature, seeds, positions, seats, best_keys, best_tokens, row_stride, vocab,
    MIN_TEMPERATURE: tl.constexpr, SEATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best token of one chunk of one row; key inf where a logit is no number to choose by."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    tokens = chunk * BLOCK + tl.arange(0, BLOCK)
    source = logits + row.to(tl.int64) * row_stride + tokens
    values = tl.load(source, mask=tokens < vocab, other=float("-inf")).to(tl.float32)
    unusable = (values != values) | (values == float("inf"))
    seat = row
    if SEATED:
        seat = tl.load(seats + row)
    heat = tl.load(temperature + seat)
    if heat >= MIN_TEMPERATURE:
        noise = _gumbel(tl.load(seeds + seat), tl.load(positions + row), tokens.to(tl.uint32))
        values += heat * noise
    best, place = tl.max(tl.where(unusable, float("inf"), values), axis=0, return_indices=True)
    target = row * tl.num_programs(1) + chunk
    tl.store(best_keys + target, best)
    tl.store(best_tokens + target, chunk * BLOCK + place)


@triton.jit
def _best_kernel(best_keys, best_tokens, tokens_out, chunks, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    keys = tl.load(best_keys + row * chunks + columns, mask=columns < chunks, other=float("-inf"))
    best, place = tl.max(keys, axis=0, return_indices=True)
    token = tl.load(best_tokens + row * chunks + place)
    usable = (best < float("inf")) & (best > float("-inf"))
    tl.store(tokens_out + row, tl.where(usable, token, vocab))


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
    block, warps = cut or ((1024, 4) if rows <= _FEW_ROWS else (4096, 8))
    chunks = triton.cdiv(vocab, block)
    keys = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    _partial_kernel[(rows, chunks)](
        logits, temperature, seeds, positions, positions if seats is None else seats, keys, tokens,
        logits.stride(0), vocab, MIN_TEMPERATURE=MIN_TEMPERATURE, SEATED=seats is not None, BLOCK=block,
        num_warps=warps,
    )  # fmt: skip
    width = triton.next_power_of_2(chunks)
    _best_kernel[(rows,)](
        keys, tokens, tokens_out, chunks, vocab, BLOCK=width, num_warps=1 if width < 256 else 2,
    )  # fmt: skip
