"""What `bench.kernels.attention` measures: shapes, random paged memory, and the configurations tried."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.kernels.attention_sections import choose_sections
from pagefleet_engine.kernels.attention_splits import SplitScratch
from pagefleet_engine.kernels.decode_attention import (
    DecodeConfig,
    choose_decode_config,
    choose_splits,
    decode_attention,
    decode_scratch,
)
from pagefleet_engine.kernels.prefill_attention import (
    PrefillConfig,
    choose_prefill_config,
    prefill_attention,
)

HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
SCALE = HEAD_SIZE**-0.5
DTYPE = torch.bfloat16
ELEMENT_BYTES = 2


class Case(NamedTuple):
    """Chunks `(first position, tokens)`, one a sequence, and what their speed is counted in."""

    name: str
    chunks: tuple[tuple[int, int], ...]
    unit: str
    splits: tuple[int, ...] = ()
    sections: tuple[int, ...] = (1,)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values that are read once."""
        return sum(start + tokens for start, tokens in self.chunks) * 2 * KV_HEADS * HEAD_SIZE * ELEMENT_BYTES

    @property
    def operations(self) -> int:
        """Multiplications and additions of the pairs that the causal mask leaves."""
        pairs = sum(tokens * start + tokens * (tokens + 1) // 2 for start, tokens in self.chunks)
        return 4 * pairs * HEADS * HEAD_SIZE

    @property
    def small(self) -> "Case":
        """The same kernels in no time."""
        if self.splits:
            return self._replace(chunks=((40, 1), (0, 1)), splits=(64,))
        return self._replace(chunks=((0, 70), (9, 1)), sections=(1, 8))


def contexts(count: int) -> tuple[tuple[int, int], ...]:
    """Decodes at contexts of 100 to 2,048 tokens."""
    lengths = random.Random(count)
    return tuple((lengths.randint(99, 2047), 1) for _ in range(count))


DECODE_CASES = (
    Case("decode b1 @1024", ((1023, 1),), "GB/s", (8, 16, 32)),
    Case("decode b1 @32768", ((32767, 1),), "GB/s", (16, 32, 64)),
    Case("decode b8 @1024", ((1023, 1),) * 8, "GB/s", (4, 8, 16)),
    Case("decode b64 @1024", ((1023, 1),) * 64, "GB/s", (1, 2, 4)),
    Case("decode b64 @100..2048", contexts(64), "GB/s", (1, 2, 4, 8)),
    Case("decode b256 @1024", ((1023, 1),) * 256, "GB/s", (1, 2)),
    Case("decode b256 @100..2048", contexts(256), "GB/s", (1, 2, 4)),
)
PREFILL_CASES = (
    Case("prefill 8 x 2048", ((0, 2048),) * 8, "TF/s"),
    Case("prefill 4 x 2048", ((0, 2048),) * 4, "TF/s"),
    Case("prefill 14 x 560", ((0, 560),) * 14, "TF/s"),
    Case("prefill 512 @32256", ((32256, 512),), "TF/s"),
    Case("prefill 2048 @6144", ((6144, 2048),), "TF/s"),
    Case("prefill 256 @32512", ((32512, 256),), "TF/s", sections=(1, 2, 4)),
    Case("prefill 64 @8192", ((8192, 64),), "TF/s", sections=(1, 4, 8)),
    Case("prefill 1 @1023 x 64 (bytes in decode's terms)", ((1023, 1),) * 64, "GB/s"),
)
DENSE_CASES = (PREFILL_CASES[0], PREFILL_CASES[1], PREFILL_CASES[2], PREFILL_CASES[3], PREFILL_CASES[4])

DECODE_CONFIGS = (
    DecodeConfig(64, 4, 3),
    DecodeConfig(64, 4, 3, fused=False),
    DecodeConfig(64, 4, 2),
    DecodeConfig(64, 4, 4),
    DecodeConfig(64, 2, 3),
    DecodeConfig(64, 2, 3, fused=False),
    DecodeConfig(32, 1, 3),
    DecodeConfig(32, 1, 4),
    DecodeConfig(32, 2, 3),
    DecodeConfig(32, 2, 4),
    DecodeConfig(32, 4, 4),
    DecodeConfig(128, 4, 2),
    DecodeConfig(128, 4, 3),
    DecodeConfig(128, 8, 2),
)
PREFILL_CONFIGS = (
    PrefillConfig(128, 128, 8, 2),
    PrefillConfig(64, 128, 4, 2),
    PrefillConfig(128, 64, 8, 2),
    PrefillConfig(128, 128, 8, 3),
    PrefillConfig(128, 64, 8, 3),
    PrefillConfig(128, 64, 8, 4),
    PrefillConfig(128, 64, 8, 2, 128),
    PrefillConfig(128, 64, 8, 3, 128),
    PrefillConfig(128, 64, 4, 2),
    PrefillConfig(64, 64, 4, 2),
    PrefillConfig(64, 64, 4, 3),
    PrefillConfig(64, 64, 4, 2, 168),
    PrefillConfig(64, 32, 4, 3),
)


class Problem(NamedTuple):
    """The tensors of one call; `kv` blocks lie in random order."""

    queries: torch.Tensor
    kv: torch.Tensor
    tables: torch.Tensor
    seats: torch.Tensor
    offsets: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    out: torch.Tensor
    longest: int
    scratch: SplitScratch


def problem(case: Case, device: str) -> Problem:
    """Random tensors for `case`; the same at each call but for the memory's addresses."""
    torch.manual_seed(0)
    counts = [blocks_for(start + tokens) for start, tokens in case.chunks]
    order = torch.randperm(sum(counts), dtype=torch.int32).tolist()
    tables = torch.zeros(len(counts) + 1, max(counts), dtype=torch.int32)
    for seat, count in enumerate(counts):
        tables[seat, :count] = torch.tensor(order[:count])
        del order[:count]
    lengths = torch.tensor([tokens for _, tokens in case.chunks])
    offsets = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    starts = torch.tensor([start for start, _ in case.chunks], dtype=torch.int32)
    tokens, sequences = int(offsets[-1]), len(counts)
    packed = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * HEAD_SIZE, device=device, dtype=DTYPE)
    kv = torch.randn(sum(counts) + 1, 2, KV_HEADS, BLOCK_TOKENS, HEAD_SIZE, device=device, dtype=DTYPE)
    rows = sequences * 64 if case.splits else tokens * max(case.sections)
    return Problem(
        packed[:, : HEADS * HEAD_SIZE].unflatten(1, (HEADS, HEAD_SIZE)),
        kv,
        tables.to(device),
        torch.arange(sequences, dtype=torch.int32, device=device),
        offsets.to(device),
        starts.to(device),
        (starts + lengths.int()).to(device),
        torch.empty(tokens, HEADS, HEAD_SIZE, device=device, dtype=DTYPE),
        int(lengths.max()),
        decode_scratch(sequences, rows, HEADS, HEAD_SIZE, torch.device(device)),
    )


def launches(case: Case, multiprocessors: int) -> Iterator[tuple[str, Callable[[Problem], Any]]]:
    """Each configuration's name and what launches it; the one that the engine would choose is marked."""
    if not case.splits:
        yield from prefill_launches(case, multiprocessors)
        return
    chosen_splits = choose_splits(len(case.chunks), KV_HEADS, multiprocessors)
    chosen = (chosen_splits, choose_decode_config(HEAD_SIZE, ELEMENT_BYTES, chosen_splits))
    wanted = [(splits, config) for splits in case.splits for config in DECODE_CONFIGS if config.fused or splits > 1]
    for splits, config in wanted if chosen in wanted else [*wanted, chosen]:
        mark = " <- chosen" if (splits, config) == chosen else ""
        apart = "" if config.fused else " apart"
        label = f"{splits:2d} splits {config.tile} {config.warps}w {config.stages}s{apart}{mark}"
        yield label, decode_launch(config, splits)


def prefill_launches(case: Case, multiprocessors: int) -> Iterator[tuple[str, Callable[[Problem], Any]]]:
    """Like `launches`; a context in several sections with the first configurations only."""
    tokens, longest = sum(tokens for _, tokens in case.chunks), max(tokens for _, tokens in case.chunks)
    context = max(start + tokens for start, tokens in case.chunks)
    chosen = (
        choose_sections(tokens, context, HEADS, KV_HEADS, multiprocessors),
        choose_prefill_config(HEAD_SIZE, ELEMENT_BYTES, longest * HEADS // KV_HEADS, (9, 0)),
    )
    for sections in case.sections:
        for config in PREFILL_CONFIGS if sections == 1 else PREFILL_CONFIGS[:3]:
            mark = " <- chosen" if (sections, config) == chosen else ""
            limit = f" {config.max_registers}r" if config.max_registers else ""
            parts = f" {sections} sections" if sections > 1 else ""
            label = f"{config.rows} x {config.tile} {config.warps}w {config.stages}s{limit}{parts}{mark}"
            yield label, prefill_launch(config, sections)


def decode_launch(config: DecodeConfig, splits: int) -> Callable[[Problem], Any]:
    """Launch of `decode_attention` by a configuration."""
    return lambda each: decode_attention(
        each.queries, each.kv, each.tables, each.seats, each.lengths, each.out,
        scale=SCALE, splits=splits, scratch=each.scratch, config=config,
    )  # fmt: skip


def prefill_launch(config: PrefillConfig, sections: int) -> Callable[[Problem], Any]:
    """Launch of `prefill_attention` by a configuration."""
    return lambda each: prefill_attention(
        each.queries, each.kv, each.tables, each.seats, each.offsets, each.starts, each.out,
        scale=SCALE, max_tokens=each.longest, config=config, sections=sections, scratch=each.scratch,
    )  # fmt: skip


def dense_launch(case: Case, backend: str) -> Callable[[], Any]:
    """torch's attention on dense tensors of the same shape; chunks of one case are alike."""
    (start, tokens), batch = case.chunks[0], len(case.chunks)
    queries = torch.randn(batch, HEADS, tokens, HEAD_SIZE, device="cuda", dtype=DTYPE)
    keys = torch.randn(batch, KV_HEADS, start + tokens, HEAD_SIZE, device="cuda", dtype=DTYPE)
    values = torch.randn_like(keys)
    mask = causal_lower_right(tokens, start + tokens) if start else None
    attend = torch.nn.functional.scaled_dot_product_attention

    def launch() -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return attend(queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True)

    return launch
