"""The context of chunks in sections, for short chunks after a long context: how many, and their sum."""

import math

import torch
import triton
import triton.language as tl

from pagefleet_engine.kernels.attention_splits import SplitScratch, combine_splits
from pagefleet_engine.kernels.attention_tile import padded_head_size
from pagefleet_engine.kernels.launches import Launches, launch

MAX_SECTIONS = 16
MIN_SECTION_TOKENS = 128
SECTION_HEADS = 6144 * 32
"""Room for the sums of sections: rows times sections times heads; 100 MB for heads of 128."""
_TILE_US, _SHARED, _SUM_US = 1.3, 1.4, 0.01 / 32
"""What sections are weighed by, of heads of 128 on an H200 (see bench/LOG.md): a program's time for 64 keys, how much
longer it takes where two share a multiprocessor, and one row's sums of one section and head, written and read."""
_SUMMED_HEADS, _SUMMED_ELEMENTS = 4, 2048
"""What one warp adds up: heads of a row, and elements of sections at a time."""


def choose_sections(tokens: int, max_context: int, heads: int, kv_heads: int, multiprocessors: int) -> int:
    """Sections of the context in which `tokens` rows of chunks take the least time; a power of two, at most 16.

    A section is a program's share of the context: more of them leave fewer multiprocessors idle, and make the last
    turn of programs shorter. Each costs its sums once more.
    """
    programs = int(triton.cdiv(tokens * heads // kv_heads, 128)) * kv_heads

    def expected_us(sections: int) -> float:
        full_turns, rest = divmod(programs * sections, 2 * multiprocessors)
        last_turn = 0.0 if rest == 0 else 1.0 if rest <= multiprocessors else _SHARED
        tiles = max_context / sections / 64
        sums = tokens * sections * heads if sections > 1 else 0
        return (full_turns * _SHARED + last_turn) * tiles * _TILE_US + sums * _SUM_US

    possible = [1]
    while possible[-1] < MAX_SECTIONS:
        sections = 2 * possible[-1]
        if sections * MIN_SECTION_TOKENS > max_context or tokens * sections * heads > SECTION_HEADS:
            break
        possible.append(sections)
    return min(possible, key=expected_us)


@triton.jit(do_not_specialize=["sections"])
def sections_kernel(
    partials: tl.tensor,
    log_sums: tl.tensor,
    out: tl.tensor,
    out_stride: tl.tensor,
    sections: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    MOST: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Add up the sections, at most MOST, of one row and GROUP heads; grid [HEADS / GROUP, rows]."""
    row = tl.program_id(1).to(tl.int64)
    combine_splits(
        partials, log_sums, out + row * out_stride, row * sections, sections, tl.program_id(0) * GROUP,
        HEADS, GROUP, GROUP, HEAD_SIZE, PADDED_SIZE, MOST, AT_ONCE,
    )  # fmt: skip


def add_sections(scratch: SplitScratch, out: torch.Tensor, sections: int, kept: Launches | None = None) -> None:
    """Add up what `scratch` holds of `out`'s rows [tokens, heads, head_size], row by row `sections` of each."""
    tokens, heads, head_size = out.shape
    padded, group = padded_head_size(head_size), math.gcd(heads, _SUMMED_HEADS)
    named = {
        "HEADS": heads, "GROUP": group, "HEAD_SIZE": head_size, "PADDED_SIZE": padded, "MOST": MAX_SECTIONS,
        "AT_ONCE": max(1, _SUMMED_ELEMENTS // (group * padded)), "num_warps": 1,
    }  # fmt: skip
    arguments = (scratch.partials, scratch.log_sums, out, out.stride(0), sections)
    launch(sections_kernel, (heads // group, tokens, 1), arguments, named, kept)
