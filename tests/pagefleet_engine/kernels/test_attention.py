"""Attention kernels agree with float32 torch on small problems: in Triton's interpreter, or on a GPU."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from pagefleet_engine.kernels.attention_sections import choose_sections
from pagefleet_engine.kernels.attention_splits import split_scratch
from pagefleet_engine.kernels.decode_attention import (
    DecodeConfig,
    choose_decode_config,
    choose_splits,
    decode_attention,
    decode_scratch,
)
from pagefleet_engine.kernels.prefill_attention import PrefillConfig, prefill_attention
from tests.pagefleet_engine.kernels.attention_cases import (
    Heads,
    Kind,
    Memory,
    assert_attends,
    attention,
    memory,
    packed_queries,
    unwritten,
)

pytestmark = pytest.mark.torch


KINDS = {
    "grouped": Kind(Heads(8, 2, 64)),
    "half precision": Kind(Heads(4, 2, 64), dtype=torch.float16),
    "one KV head for seven": Kind(Heads(7, 1, 32)),
    "a KV head each": Kind(Heads(2, 2, 128)),
    "no power of two": Kind(Heads(4, 2, 80)),
    "padded by a third": Kind(Heads(4, 1, 96), dtype=torch.float16),
    "large heads, capped": Kind(Heads(2, 1, 256), soft_cap=3.0),
    "window": Kind(Heads(4, 2, 32), window=20),
    "window of one": Kind(Heads(4, 2, 32), window=1),
    "window and cap": Kind(Heads(4, 2, 32), window=37, soft_cap=2.0),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def decoded(
    kind: Kind, held: Memory, queries: torch.Tensor, lengths: list[int], splits: int, fused: bool
) -> torch.Tensor:
    device = queries.device
    scratch = decode_scratch(len(lengths), len(lengths) * splits, queries.shape[1], queries.shape[2], device)
    scratch.partials.fill_(float("nan"))
    scratch.log_sums.fill_(float("nan"))
    out = decode_attention(
        queries, held.kv, held.tables, held.seats, torch.tensor(lengths, dtype=torch.int32, device=device),
        unwritten(queries), scale=0.2, splits=splits, scratch=scratch, window=kind.window, soft_cap=kind.soft_cap,
        config=DecodeConfig(tile=16, warps=2, stages=2, fused=fused),
    )  # fmt: skip
    assert not scratch.counters.any(), "the next launch counts from zero"
    return out


@pytest.mark.parametrize(("splits", "fused"), [(1, True), (2, True), (4, False)])
@kinds
def test_decode_is_attention_over_a_sequences_own_pages(device: str, kind: Kind, splits: int, fused: bool) -> None:
    torch.manual_seed(splits)
    lengths = [1, 16, 70]
    held = memory(kind.heads, lengths, kind.dtype, device)
    queries = packed_queries(kind.heads, len(lengths), kind.dtype, device)
    found = decoded(kind, held, queries, lengths, splits, fused)
    for i, length in enumerate(lengths):
        wanted = attention(queries[i : i + 1], held, i, length - 1, 0.2, kind.window, kind.soft_cap)
        assert_attends(found[i : i + 1], wanted)


@pytest.mark.parametrize("splits", [1, 4])
def test_a_sequence_without_tokens_gets_zeros(device: str, splits: int) -> None:
    kind = Kind(Heads(4, 2, 32))
    held = memory(kind.heads, [0, 40], kind.dtype, device)
    queries = packed_queries(kind.heads, 2, kind.dtype, device)
    found = decoded(kind, held, queries, [0, 40], splits, True)
    assert not found[0].any()
    assert_attends(found[1:], attention(queries[1:], held, 1, 39, 0.2))


@kinds
def test_prefill_is_causal_attention_over_a_chunks_own_pages(device: str, kind: Kind) -> None:
    torch.manual_seed(1)
    assert_prefills(kind, device, [(0, 5), (3, 1), (40, 30), (0, 0), (17, 16), (0, 33)], 1)


@pytest.mark.parametrize("kind", [KINDS["no power of two"], KINDS["window of one"], KINDS["window and cap"]])
def test_a_context_in_sections_adds_up(device: str, kind: Kind) -> None:
    torch.manual_seed(1)
    assert_prefills(kind, device, [(40, 10), (0, 0), (17, 1), (0, 20)], 4)


def assert_prefills(kind: Kind, device: str, chunks: list[tuple[int, int]], sections: int) -> None:
    found, queries, held, offsets = prefilled(kind, device, chunks, PrefillConfig(32, 16, 4, 2), sections)
    for i, (start, tokens) in enumerate(chunks):
        rows = slice(offsets[i], offsets[i] + tokens)
        if tokens:
            wanted = attention(queries[rows], held, i, start, 0.2, kind.window, kind.soft_cap)
            assert_attends(found[rows], wanted)
    if sections == 1:
        assert found[offsets[-1] :].isnan().all(), "rows outside the chunks stay as they are"


def prefilled(
    kind: Kind, device: str, chunks: list[tuple[int, int]], config: PrefillConfig, sections: int = 1
) -> tuple[torch.Tensor, torch.Tensor, Memory, list[int]]:
    held = memory(kind.heads, [start + tokens for start, tokens in chunks], kind.dtype, device)
    offsets = torch.tensor([0] + [tokens for _, tokens in chunks], dtype=torch.int32, device=device).cumsum(0).int()
    queries = packed_queries(kind.heads, int(offsets[-1]) + 3, kind.dtype, device)
    starts = torch.tensor([start for start, _ in chunks], dtype=torch.int32, device=device)
    scratch = split_scratch(0, len(queries) * sections, kind.heads.queries, kind.heads.size, queries.device)
    scratch.partials.fill_(float("nan"))
    scratch.log_sums.fill_(float("nan"))
    out = prefill_attention(
        queries, held.kv, held.tables, held.seats, offsets, starts, unwritten(queries), scale=0.2,
        max_tokens=max(tokens for _, tokens in chunks), window=kind.window, soft_cap=kind.soft_cap, config=config,
        sections=sections, scratch=scratch,
    )  # fmt: skip
    return out, queries, held, offsets.tolist()


def test_more_chunks_than_are_searched_at_once(device: str) -> None:
    kind = Kind(Heads(2, 1, 16))
    chunks = [(i % 3, 1) for i in range(135)]
    found, queries, held, offsets = prefilled(kind, device, chunks, PrefillConfig(16, 16, 1, 2))
    for i, (start, tokens) in enumerate(chunks):
        rows = slice(offsets[i], offsets[i] + tokens)
        assert_attends(found[rows], attention(queries[rows], held, i, start, 0.2))


@pytest.mark.parametrize("kind", [KINDS["grouped"], KINDS["window and cap"]])
def test_a_row_has_the_same_bits_wherever_its_prompt_was_cut(device: str, kind: Kind) -> None:
    torch.manual_seed(2)
    total = 67
    held = memory(kind.heads, [total], kind.dtype, device)
    queries = packed_queries(kind.heads, total, kind.dtype, device)
    whole = cut(kind, held, queries, [0, total])
    for cuts in ([0, 1, 2, 66, total], [0, 16, 48, total], [0, 37, total]):
        assert torch.equal(cut(kind, held, queries, cuts), whole)


def cut(kind: Kind, held: Memory, queries: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    """The whole prompt, computed in chunks between `cuts`, each by the configuration for its length."""
    out = unwritten(queries)
    for start, end in pairwise(cuts):
        prefill_attention(
            queries[start:end], held.kv, held.tables, held.seats,
            torch.tensor([0, end - start], dtype=torch.int32, device=queries.device),
            torch.tensor([start], dtype=torch.int32, device=queries.device), out[start:end],
            scale=0.2, max_tokens=end - start, window=kind.window, soft_cap=kind.soft_cap,
        )  # fmt: skip
    return out


@pytest.mark.parametrize(
    ("batch", "kv_heads", "splits"),
    [(1, 8, 32), (8, 8, 4), (32, 8, 2), (33, 8, 1), (256, 8, 1), (1, 1, 64), (3, 2, 32)],
)
def test_splits_fill_the_multiprocessors(batch: int, kv_heads: int, splits: int) -> None:
    assert choose_splits(batch, kv_heads, 132) == splits


@pytest.mark.parametrize(("batch", "warps"), [(64, 4), (72, 2), (96, 2), (104, 4), (256, 4)])
def test_programs_that_just_do_not_fit_at_one_time_are_made_smaller(batch: int, warps: int) -> None:
    assert choose_decode_config(128, 2, 1, batch * 8 / 132).warps == warps


@pytest.mark.parametrize(
    ("tokens", "max_context", "sections"),
    [
        (64, 32_768, 16), (256, 32_768, 4), (1, 131_072, 16), (64, 3000, 8), (16, 256, 2),
        # too short to be shared out; the sums would take longer than what they save
        (16, 200, 1), (448, 1024, 1), (1216, 2176, 1),
        # of two turns the second would be nearly empty; one turn that is nearly full stays one; too many sums
        (1216, 32_768, 4), (1024, 32_768, 1), (576, 32_768, 8), (4352, 32_768, 1),
    ],
)  # fmt: skip
def test_what_fills_its_turns_badly_after_a_long_context_is_split(tokens: int, max_context: int, sections: int) -> None:
    assert choose_sections(tokens, max_context, 32, 8, 132) == sections


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": torch.zeros(3, 2, 2, 16, 32)}, "KV memory"),
        ({"kv": torch.zeros(3, 2, 3, 16, 64)}, "do not divide"),
        ({"out": torch.zeros(2, 64, 4).mT}, "heads must lie together"),
        ({"splits": 3}, "power of two"),
        ({"splits": 4}, "with scratch"),
        ({"splits": 4, "scratch": decode_scratch(2, 4, 4, 64, torch.device("cpu"))}, "4 rows"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, Any], message: str) -> None:
    tensors: dict[str, Any] = {"kv": torch.zeros(3, 2, 2, 16, 64), "out": torch.zeros(2, 4, 64)}
    options: dict[str, Any] = {"splits": 1, "scratch": None}
    index = torch.zeros(2, dtype=torch.int32)
    given = tensors | options | change
    with pytest.raises(ValueError, match=message):
        decode_attention(
            torch.zeros(2, 4, 64), block_tables=index[:, None], seats=index, context_lengths=index, scale=1.0, **given
        )


def test_a_group_larger_than_a_tile_is_refused() -> None:
    index = torch.zeros(2, dtype=torch.int32)
    rows = torch.zeros(1, 32, 16)
    with pytest.raises(ValueError, match="32 query heads for a KV head"):
        prefill_attention(
            rows, torch.zeros(2, 2, 1, 16, 16), index[:, None], index[:1], index, index[:1], rows.clone(),
            scale=1.0, max_tokens=1, config=PrefillConfig(16, 16, 1, 2),
        )  # fmt: skip
