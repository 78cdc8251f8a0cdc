"""A program: compiles the kernels of a model's layers for real cards and reports what they take (`compiling`)."""

from collections.abc import Callable

import torch

from pagefleet_engine.kernels import (
    activation,
    cuts,
    early_gemm,
    gated_gemm,
    gated_warps,
    gemv,
    grouped_gemm,
    invariant_gemm,
    norm,
    own_ranks,
    prepare,
    rope,
    sampling,
)
from tests.pagefleet_engine.kernels.compiling import report

WIDTH = 4096


def half(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def norms() -> None:
    rows = half(2, WIDTH)
    norm.add_rms_norm(rows, rows, rows[0], 1e-5)
    norm.add_rms_norm(torch.empty(4, 2, WIDTH), rows, rows[0], 1e-5)
    wide = half(2, 16384)
    norm.sandwich(wide, wide[0], wide, wide[0], 1e-5, unit_offset=True)


def rotation() -> None:
    for size, rotary, weight in ((128, 128, half(128)), (80, 32, None)):
        rope.rope_and_cache(
            half(1, 48 * size), integers(1), torch.empty(8, rotary), integers(1), half(2, 2, 8, 16, size),
            heads=32, kv_heads=8, head_size=size, rotary_size=rotary, query_norm=weight, key_norm=weight,
            parts=None if weight is None else torch.empty(2, 1, 48 * size),
        )  # fmt: skip


def activations() -> None:
    activation.gated(half(1, 28672), "silu")
    activation.gated(half(64, 28672), "gelu_tanh")


def draws() -> None:
    for rows, vocab, seats in ((1, 128256, None), (64, 128256, None), (2, 250, integers(2))):
        seeds = integers(rows, dtype=torch.int64)
        sampling.sample(half(rows, vocab), torch.empty(rows), seeds, integers(rows), integers(rows), seats=seats)
    row = torch.empty(2)
    cuts.restrict(torch.empty(2, 128256), row, row.int(), row, row)


def inputs_of_a_step() -> None:
    state = prepare.SeatState(integers(9), integers(9, 64), torch.empty(9), integers(9, dtype=torch.int64))
    inputs = prepare.StepInputs(*(integers(64) for _ in range(6)))
    for adapted in (False, True):
        prepare.prepare(integers(512), prepare.PackedCounts(64, 8, 2, 1, adapted), inputs, state, 128256)
    prepare.keep_sampled(integers(8), integers(8), state)


def ranks_of_adapters() -> None:
    for ranks in (16, 3 * 64, 4096):
        own_ranks.keep_own(half(64, ranks), integers(ranks), integers(64))


def layers_of_few_rows() -> None:
    before = gemv.Norm(half(WIDTH), 1e-5)
    for rows in (1, 8):
        gemv.gated_linear(half(rows, WIDTH), half(28672, WIDTH), "silu", norm=before)
        gemv.linear_add_(half(rows, 14336), half(WIDTH, 14336), half(rows, WIDTH))


def invariant_layers() -> None:
    for rows in (1, 100, 1000):
        invariant_gemm.linear(half(rows, WIDTH), half(6144, WIDTH))


def experts() -> None:
    for rows in (64, 4096, 32768):
        places = integers(rows, dtype=torch.int64)
        routing = grouped_gemm.Routing(places, places, integers(128), 8)
        found = grouped_gemm.experts_linear(half(rows // 8, 2048), half(128, 1536, 2048), routing, gather=True)
        grouped_gemm.combine(found, half(rows // 8, 8), routing)


def products_of_few_rows() -> None:
    for rows in (16, 32, 64, 96, 128, 160, 192):
        gated_gemm.gated_product(half(rows, WIDTH), half(28672, WIDTH), "silu")
        early_gemm.partial_product(half(rows, WIDTH), half(6144, WIDTH), parts=2)


def gated_products_of_many_rows() -> None:
    for groups in (2, 3):
        for kind in ("silu", "gelu_tanh"):
            gated_warps.gated_product(half(1280, WIDTH), half(28672, WIDTH), kind, programs=132, groups=groups)


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        norms,
        rotation,
        activations,
        draws,
        inputs_of_a_step,
        ranks_of_adapters,
        layers_of_few_rows,
        invariant_layers,
        experts,
    )
}
HOPPER_CASES: dict[str, Callable[[], None]] = {
    case.__name__: case for case in (products_of_few_rows, gated_products_of_many_rows)
}

if __name__ == "__main__":
    report(CASES)
    report(HOPPER_CASES, [90])
