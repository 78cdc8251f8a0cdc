"""Attention kernels on a GPU: long contexts in 16-bit types, any lengths, graphs, and the same bits every time."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagefleet_engine.kernels.attention_splits import split_scratch
from pagefleet_engine.kernels.decode_attention import decode_attention, decode_scratch
from pagefleet_engine.kernels.prefill_attention import prefill_attention
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

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

BF16 = torch.bfloat16
KINDS = [
    Kind(Heads(32, 8, 128), dtype=BF16),
    Kind(Heads(14, 2, 64), dtype=BF16),
    Kind(Heads(4, 4, 96), dtype=torch.float16),
    Kind(Heads(32, 8, 80), window=300, dtype=BF16),
    Kind(Heads(8, 4, 256), window=1024, soft_cap=50.0, dtype=BF16),
    Kind(Heads(4, 2, 128)),
]
LENGTHS = st.one_of(st.sampled_from([1, 15, 16, 17, 63, 64, 65, 5000]), st.integers(1, 3000))
by_machine = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)


def decoded(kind: Kind, held: Memory, queries: torch.Tensor, lengths: torch.Tensor, splits: int) -> torch.Tensor:
    scratch = decode_scratch(len(lengths), len(lengths) * splits, kind.heads.queries, kind.heads.size, queries.device)
    scratch.partials.fill_(float("nan"))
    scratch.log_sums.fill_(float("nan"))
    out = decode_attention(
        queries, held.kv, held.tables, held.seats, lengths, unwritten(queries), scale=kind.heads.size**-0.5,
        splits=splits, scratch=scratch, window=kind.window, soft_cap=kind.soft_cap,
    )  # fmt: skip
    assert not scratch.counters.any(), "the next launch counts from zero"
    return out


@by_machine
@given(
    kind=st.sampled_from(KINDS),
    lengths=st.lists(LENGTHS, min_size=1, max_size=9),
    splits=st.sampled_from([1, 4, 32]),
)
def test_decode_is_attention_over_any_context(kind: Kind, lengths: list[int], splits: int) -> None:
    torch.manual_seed(sum(lengths))
    held = memory(kind.heads, lengths, kind.dtype, "cuda")
    queries = packed_queries(kind.heads, len(lengths), kind.dtype, "cuda")
    found = decoded(kind, held, queries, torch.tensor(lengths, dtype=torch.int32, device="cuda"), splits)
    for i, length in enumerate(lengths):
        scale = kind.heads.size**-0.5
        wanted = attention(queries[i : i + 1], held, i, length - 1, scale, kind.window, kind.soft_cap)
        assert_attends(found[i : i + 1], wanted)


def chunked(
    kind: Kind, held: Memory, queries: torch.Tensor, chunks: list[tuple[int, int]], sections: int = 1
) -> torch.Tensor:
    rows = len(queries) * sections if sections > 1 else 0
    offsets = torch.tensor([0, *accumulate(tokens for _, tokens in chunks)], dtype=torch.int32, device="cuda")
    starts = torch.tensor([start for start, _ in chunks], dtype=torch.int32, device="cuda")
    return prefill_attention(
        queries, held.kv, held.tables, held.seats, offsets, starts, unwritten(queries),
        scale=kind.heads.size**-0.5, max_tokens=max(tokens for _, tokens in chunks),
        window=kind.window, soft_cap=kind.soft_cap, sections=sections,
        scratch=split_scratch(0, rows, kind.heads.queries, kind.heads.size, queries.device),
    )  # fmt: skip


@by_machine
@given(
    kind=st.sampled_from(KINDS),
    chunks=st.lists(st.tuples(st.integers(0, 2000), LENGTHS), min_size=1, max_size=6),
    sections=st.sampled_from([1, 1, 8]),
)
def test_prefill_is_causal_attention_over_any_chunks(kind: Kind, chunks: list[tuple[int, int]], sections: int) -> None:
    torch.manual_seed(len(chunks))
    held = memory(kind.heads, [start + tokens for start, tokens in chunks], kind.dtype, "cuda")
    queries = packed_queries(kind.heads, sum(tokens for _, tokens in chunks), kind.dtype, "cuda")
    found = chunked(kind, held, queries, chunks, sections)
    ends = list(accumulate(tokens for _, tokens in chunks))
    for i, ((start, tokens), end) in enumerate(zip(chunks, ends, strict=True)):
        rows = slice(end - tokens, end)
        scale = kind.heads.size**-0.5
        assert_attends(found[rows], attention(queries[rows], held, i, start, scale, kind.window, kind.soft_cap))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_wherever_its_prompt_was_cut_and_whoever_is_beside_it(kind: Kind) -> None:
    torch.manual_seed(3)
    total = 700
    held = memory(kind.heads, [total, 90], kind.dtype, "cuda")
    queries = packed_queries(kind.heads, total + 90, kind.dtype, "cuda")
    whole = chunked(kind, held, queries, [(0, total), (0, 90)])[:total]
    for cuts in ([0, 1, 2, 333, total], [0, 512, total], [0, *range(650, total + 1)]):
        for start, end in pairwise(cuts):
            alone = held._replace(seats=held.seats[:1])
            part = chunked(kind, alone, queries[start:end], [(start, end - start)])
            assert torch.equal(part, whole[start:end]), f"{start} to {end}"


@pytest.mark.parametrize("splits", [1, 8, 32])
def test_a_decode_step_gives_the_same_bits_every_time(splits: int) -> None:
    kind = KINDS[0]
    lengths = [1, 700, 64, 2047, 3000, 511, 129, 1500] * 8
    held = memory(kind.heads, lengths, kind.dtype, "cuda")
    queries = packed_queries(kind.heads, len(lengths), kind.dtype, "cuda")
    counts = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    first = decoded(kind, held, queries, counts, splits)
    for _ in range(100):
        assert torch.equal(decoded(kind, held, queries, counts, splits), first)


def test_a_captured_step_serves_other_lengths_and_seats() -> None:
    kind, most = KINDS[0], [3000, 40, 900, 2000]
    held = memory(kind.heads, most, kind.dtype, "cuda")
    queries = packed_queries(kind.heads, 4, kind.dtype, "cuda")
    lengths = torch.ones(4, dtype=torch.int32, device="cuda")
    seats, out = held.seats.clone(), unwritten(queries)
    scratch = decode_scratch(4, 4 * 16, kind.heads.queries, kind.heads.size, queries.device)

    def step() -> None:
        decode_attention(
            queries, held.kv, held.tables, seats, lengths, out, scale=0.1, splits=16, scratch=scratch
        )  # fmt: skip

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for order in ([0, 1, 2, 3], [3, 0, 1, 2]):
        seats.copy_(held.seats[order])
        lengths.copy_(torch.tensor([most[i] for i in order]))
        out.fill_(float("nan"))
        graph.replay()
        for row, i in enumerate(order):
            assert_attends(out[row : row + 1], attention(queries[row : row + 1], held, i, most[i] - 1, 0.1))
