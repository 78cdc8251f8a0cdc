"""Head norms, rotation and the KV write agree with plain torch, and touch nothing else."""

from typing import NamedTuple

import pytest
import torch

from pagefleet_engine.kernels.rope import rope_and_cache
from tests.pagefleet_engine.kernels.nearness import assert_near

pytestmark = pytest.mark.torch
EPS = 1e-6
POSITIONS = 50
BLOCKS = 6


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    head_size: int
    rotary_size: int


SHAPES = [Shape(4, 2, 16, 16), Shape(9, 3, 64, 64), Shape(3, 1, 80, 32), Shape(2, 2, 96, 96), Shape(17, 1, 16, 8)]


class Case:
    """Random projections, a rotary table, and a poisoned KV memory."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str, tokens: int = 5) -> None:
        torch.manual_seed(shape.heads)
        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_size
        self.qkv = torch.randn(tokens, width + 8, device=device).to(dtype)[:, :width]
        self.positions = torch.randint(POSITIONS, (tokens,), device=device, dtype=torch.int32)
        angles = torch.rand(POSITIONS, shape.rotary_size // 2, device=device) * 6
        self.table = torch.cat([angles.cos(), angles.sin()], 1)
        self.slots = torch.randperm(BLOCKS * 16, device=device)[:tokens].int()
        self.kv = torch.full((BLOCKS + 1, 2, shape.kv_heads, 16, shape.head_size), 77.0, device=device).to(dtype)
        self.query_norm, self.key_norm = (torch.randn(shape.head_size, device=device).to(dtype) for _ in range(2))

    def parts(self) -> list[torch.Tensor]:
        heads, kv_heads, size = self.shape.heads, self.shape.kv_heads, self.shape.head_size
        split = self.qkv.clone().split([heads * size, kv_heads * size, kv_heads * size], 1)
        return [part.reshape(len(self.qkv), -1, size) for part in split]

    def rotated(self, rows: torch.Tensor, weight: torch.Tensor | None, unit_offset: bool) -> torch.Tensor:
        values = rows.float()
        if weight is not None:
            values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + EPS)
            scaled = (1.0 + weight.float()) * values if unit_offset else weight * values.to(rows.dtype)
            values = scaled.to(rows.dtype).float()
        half = self.shape.rotary_size // 2
        cosines, sines = (part[:, None] for part in self.table[self.positions.long()].split(half, 1))
        first, second, rest = values.split([half, half, self.shape.head_size - 2 * half], -1)
        turned = [first * cosines - second * sines, second * cosines + first * sines, rest]
        return torch.cat(turned, -1).to(rows.dtype)

    def run(
        self, norms: bool, unit_offset: bool = False, rotate: bool = True, keys_in_place: bool = False,
        parts: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        rope_and_cache(
            self.qkv,
            self.positions,
            self.table if rotate else None,
            self.slots,
            self.kv,
            **self.shape._asdict(),
            query_norm=self.query_norm if norms else None,
            key_norm=self.key_norm if norms else None,
            eps=EPS,
            unit_offset=unit_offset,
            keys_in_place=keys_in_place,
            parts=parts,
        )

    def cached(self, part: int) -> torch.Tensor:
        slots = self.slots.long()
        return self.kv[slots // 16, part, :, slots % 16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("norms", "unit_offset"), [(False, False), (True, False), (True, True)])
def test_queries_turn_in_place_and_keys_and_values_reach_their_slots(
    device: str, dtype: torch.dtype, shape: Shape, norms: bool, unit_offset: bool
) -> None:
    case = Case(shape, dtype, device)
    queries, keys, values = case.parts()
    case.run(norms, unit_offset)
    found_queries, found_keys, found_values = case.parts()
    assert_near(found_queries, case.rotated(queries, case.query_norm if norms else None, unit_offset), steps=4)
    assert_near(case.cached(0), case.rotated(keys, case.key_norm if norms else None, unit_offset), steps=4)
    assert torch.equal(case.cached(1), values)
    assert torch.equal(found_keys, keys)
    assert torch.equal(found_values, values)


def test_only_the_named_slots_are_written(device: str) -> None:
    case = Case(SHAPES[1], torch.bfloat16, device)
    case.run(norms=True)
    slots = case.slots.long()
    case.kv[slots // 16, :, :, slots % 16] = 77.0
    assert bool((case.kv == 77.0).all())


def test_finished_keys_may_stay_in_the_projections_too(device: str) -> None:
    case = Case(SHAPES[2], torch.bfloat16, device)
    case.run(norms=True, keys_in_place=True)
    assert torch.equal(case.parts()[1], case.cached(0))


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_what_comes_in_parts_is_summed_and_rounded_first(device: str, rotate: bool, count: int) -> None:
    whole, summed = (Case(SHAPES[2], torch.bfloat16, device) for _ in range(2))
    parts = torch.randn(count, *whole.qkv.shape, device=device)
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    whole.qkv.copy_(total)
    summed.qkv.fill_(77.0)
    for case, given in ((whole, None), (summed, parts)):
        case.run(norms=rotate, rotate=rotate, keys_in_place=True, parts=given)
    # the interpreter rounds to bfloat16 in its own way
    assert_near(summed.kv, whole.kv, steps=4)
    for found, wanted in zip(summed.parts(), whole.parts(), strict=True):
        assert_near(found, wanted, steps=4)


def test_a_layer_without_positions_is_written_as_it_is(device: str) -> None:
    case = Case(SHAPES[0], torch.bfloat16, device)
    before = case.parts()
    case.run(norms=False, rotate=False)
    assert torch.equal(case.parts()[0], before[0])
    assert torch.equal(case.cached(0), before[1])
