"""Paged attention problems on random memory, and what float32 torch answers to them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

BLOCK = 16


class Heads(NamedTuple):
    """Shape of the attention: query heads, KV heads, elements a head."""

    queries: int
    kv: int
    size: int

    @property
    def packed(self) -> int:
        """Elements of a packed row of queries, keys and values."""
        return (self.queries + 2 * self.kv) * self.size


class Kind(NamedTuple):
    """What a model asks of attention."""

    heads: Heads
    window: int | None = None
    soft_cap: float | None = None
    dtype: torch.dtype = torch.float32


class Memory(NamedTuple):
    """KV memory, block tables that scatter over it, and the seats of the sequences in their order."""

    kv: torch.Tensor
    tables: torch.Tensor
    seats: torch.Tensor


def memory(heads: Heads, lengths: Sequence[int], dtype: torch.dtype, device: str) -> Memory:
    """Room for `lengths` tokens; what no sequence holds is NaN: the dummy block and each last block's rest."""
    blocks = [-(-length // BLOCK) for length in lengths]
    total, widest = sum(blocks), max(1, *blocks)
    kv = torch.randn(total + 1, 2, heads.kv, BLOCK, heads.size, device=device).to(dtype)
    kv[total] = float("nan")
    order = torch.randperm(total, device=device, dtype=torch.int32)
    seats = torch.randperm(len(lengths) + 2, device=device, dtype=torch.int32)[: len(lengths)]
    tables = torch.full((len(lengths) + 2, widest), total, dtype=torch.int32, device=device)
    taken = 0
    for seat, count, length in zip(seats.tolist(), blocks, lengths, strict=True):
        tables[seat, :count] = order[taken : taken + count]
        if length % BLOCK:
            kv[order[taken + count - 1].item(), :, :, length % BLOCK :] = float("nan")
        taken += count
    return Memory(kv, tables, seats)


def packed_queries(heads: Heads, tokens: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Queries as a view of packed rows."""
    rows = torch.randn(tokens, heads.packed, device=device).to(dtype)
    return rows[:, : heads.queries * heads.size].unflatten(1, (heads.queries, heads.size))


def unwritten(like: torch.Tensor) -> torch.Tensor:
    """An output whose every element is wrong until it is written."""
    return torch.full(like.shape, float("nan"), dtype=like.dtype, device=like.device)


def attention(
    queries: torch.Tensor,
    held: Memory,
    index: int,
    start: int,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of sequence `index`'s tokens `queries [n, heads, size]` from position `start` on, float32."""
    length = start + queries.shape[0]
    pages = held.kv[held.tables[held.seats[index]].long()]
    keys, values = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length].float()
    group = queries.shape[1] // keys.shape[0]
    scores = queries.float().transpose(0, 1) @ keys.repeat_interleave(group, 0).mT * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    rows = torch.arange(start, length, device=queries.device)[:, None]
    columns = torch.arange(length, device=queries.device)[None]
    hidden = columns > rows
    if window is not None:
        hidden |= columns <= rows - window
    shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return (shares @ values.repeat_interleave(group, 0)).transpose(0, 1)


def assert_attends(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal but for the rounding of shares and results to `found`'s type."""
    tolerance = 2e-5 if found.dtype == torch.float32 else 2 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.float(), wanted, rtol=tolerance, atol=tolerance)
