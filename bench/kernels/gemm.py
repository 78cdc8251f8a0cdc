"""Speed of the linear layers' kernels on a GPU beside cuBLAS: `python -m bench.kernels.gemm [--json OUT]`.

Fused layers of a few rows (Llama 8B's and Qwen3 0.6B's shapes), the batch-invariant product, and experts; each
in many configurations, so that one run says which to choose. A star marks what the launcher chooses.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from bench.kernels.cases import Case, Inputs, Variant, run
from pagefleet_engine.kernels import gemv, grouped_gemm, invariant_gemm, norm
from pagefleet_engine.kernels.activation import gated

EPS = 1e-5
LAYERS = {
    "8B qkv norm": (4096, 6144),
    "8B gate_up gated": (4096, 28672),
    "8B output add": (4096, 4096),
    "8B down add": (14336, 4096),
    "8B head norm": (4096, 128256),
    "0.6B qkv norm": (1024, 4096),
    "0.6B gate_up gated": (1024, 6144),
    "0.6B output add": (2048, 1024),
    "0.6B down add": (3072, 1024),
    "0.6B head norm": (1024, 151936),
}
"""Width and outputs; the last word says what is fused."""
VECTOR = [
    (2, 512, 4, 1), (4, 512, 4, 1), (2, 1024, 4, 1), (4, 1024, 4, 1), (1, 2048, 4, 1), (8, 512, 4, 1), (8, 512, 8, 1),
    (4, 512, 2, 1), (16, 256, 4, 1), (4, 1024, 8, 1), (4, 1024, 4, 3), (8, 512, 4, 4), (16, 256, 4, 4),
]  # fmt: skip
DOT = [
    (8, 64, 4, 3), (8, 128, 4, 3), (8, 64, 8, 3), (16, 64, 4, 3), (16, 64, 4, 5), (16, 128, 4, 3), (16, 128, 4, 4),
    (16, 64, 8, 3), (16, 128, 8, 3), (32, 64, 4, 3), (32, 64, 4, 4), (32, 128, 4, 3),
]  # fmt: skip
OVERLAPPED = [(4, 1024, 4, 1), (2, 1024, 4, 1), (4, 512, 4, 1), (8, 128, 4, 3), (16, 128, 4, 3), (16, 64, 8, 3)]
"""Measured with programmatic dependent launch too."""
TILES = [
    (64, 16, 128, 4, 5), (64, 32, 128, 4, 4), (64, 64, 128, 4, 4), (64, 128, 64, 4, 4), (64, 256, 64, 4, 4),
    (128, 128, 64, 4, 4), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4),
]  # fmt: skip
EXPERT_TILES = [
    (16, 32, 128, 4, 5), (16, 64, 128, 4, 4), (16, 128, 64, 4, 4), (32, 64, 128, 4, 4), (64, 64, 128, 4, 3),
    (64, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4), (128, 256, 64, 8, 3),
]  # fmt: skip


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def layer_inputs(rows: int, width: int, outputs: int) -> Inputs:
    weight = random(outputs, width).mul_(width**-0.5)
    return {
        "hidden": random(rows, width),
        "weight": weight,
        "norm": random(width),
        "residual": random(rows, outputs),
    }


def separate(fused: str, inputs: Inputs) -> torch.Tensor:
    """The layer by cuBLAS, with kernels of their own before and after it."""
    hidden = inputs["hidden"]
    if fused == "add":
        residual = inputs["residual"]
        return torch.addmm(residual, hidden, inputs["weight"].T, out=residual)
    found = functional.linear(norm.rms_norm(hidden, inputs["norm"], EPS), inputs["weight"])
    return gated(found, "silu") if fused == "gated" else found


def alone(inputs: Inputs) -> torch.Tensor:
    return functional.linear(inputs["hidden"], inputs["weight"])


def fused_layer(fused: str, config: gemv.Config | None, pdl: bool, inputs: Inputs) -> torch.Tensor:
    hidden, weight = inputs["hidden"], inputs["weight"]
    before = gemv.Norm(inputs["norm"], EPS)
    if fused == "add":
        gemv.linear_add_(hidden, weight, inputs["residual"], config=config, pdl=pdl)
        return inputs["residual"]
    if fused == "gated":
        return gemv.gated_linear(hidden, weight, "silu", norm=before, config=config, pdl=pdl)
    return gemv.linear(hidden, weight, norm=before, config=config, pdl=pdl)


def gemv_case(name: str, rows: int, width: int, outputs: int) -> Case:
    fused = name.rsplit(" ", 1)[1]
    configs = [gemv.Config(True, *cut) for cut in DOT]
    if rows == 1:
        configs += [gemv.Config(False, *cut) for cut in VECTOR]
    variants: dict[str, Variant] = {"torch and kernels of their own": partial(separate, fused)}
    variants["torch linear alone"] = alone
    variants["chosen *"] = partial(fused_layer, fused, None, False)
    variants["chosen, pdl *"] = partial(fused_layer, fused, None, True)
    for config in configs:
        name_of_config = f"{'dot' if config.dot else 'vector'} {tuple(config)[1:]}"
        variants[name_of_config] = partial(fused_layer, fused, config, False)
        if tuple(config)[1:] in OVERLAPPED:
            variants[f"{name_of_config} pdl"] = partial(fused_layer, fused, config, True)
    return Case(
        f"{name}, {rows} rows {width} -> {outputs}",
        partial(layer_inputs, rows, width, outputs),
        variants,
        2 * width * outputs,
        2 * rows * width * outputs,
        "residual" if fused == "add" else None,
    )


def invariant_case(rows: int, width: int, outputs: int) -> Case:
    def product(tile: invariant_gemm.Tile | None) -> Variant:
        return lambda inputs: invariant_gemm.linear(inputs["hidden"], inputs["weight"], tile=tile)

    few = rows <= 64
    tiles = [invariant_gemm.Tile(*tile) for tile in TILES if (tile[0] == 64 and tile[1] <= 128) == few or rows == 256]
    variants: dict[str, Variant] = {"torch linear": alone, "chosen *": product(None)}
    variants |= {str(tuple(tile)): product(tile) for tile in tiles}
    return Case(
        f"invariant, {rows} rows {width} -> {outputs}",
        partial(layer_inputs, rows, width, outputs),
        variants,
        2 * (width * outputs + rows * (width + outputs)),
        2 * rows * width * outputs,
    )


def expert_inputs(tokens: int, experts: int, per_token: int, width: int, outputs: int) -> Inputs:
    expert_ids = torch.rand(tokens, experts, device="cuda").argsort(1)[:, :per_token]
    routing = grouped_gemm.sort_by_expert(expert_ids, experts)
    weights = random(experts, outputs, width).mul_(width**-0.5)
    rows = random(tokens, width)[routing.order // per_token]
    return {
        "expert_ids": expert_ids, "hidden": rows, "weights": weights, "order": routing.order,
        "places": routing.places, "ends": routing.ends,
    }  # fmt: skip


def expert_case(tokens: int, width: int, outputs: int, experts: int = 128, per_token: int = 8) -> Case:
    """Qwen3-30B-A3B's experts; torch's grouped product where it has one."""

    def product(tile: grouped_gemm.Tile | None) -> Variant:
        def call(inputs: Inputs) -> torch.Tensor:
            routing = grouped_gemm.Routing(inputs["order"], inputs["places"], inputs["ends"], per_token)
            return grouped_gemm.experts_linear(inputs["hidden"], inputs["weights"], routing, gather=False, tile=tile)

        return call

    def torchs(inputs: Inputs) -> torch.Tensor:
        found: torch.Tensor = torch._grouped_mm(
            inputs["hidden"], inputs["weights"].transpose(1, 2), offs=inputs["ends"]
        )
        return found

    rows = tokens * per_token
    used = min(experts, round(experts * (1 - (1 - per_token / experts) ** tokens)))
    variants: dict[str, Variant] = {"chosen *": product(None), "torch grouped": torchs}
    variants |= {str(tile): product(grouped_gemm.Tile(*tile)) for tile in EXPERT_TILES}
    inputs: Callable[[], Inputs] = partial(expert_inputs, tokens, experts, per_token, width, outputs)
    moved = 2 * (used * width * outputs + rows * (width + outputs))
    return Case(f"experts, {tokens} tokens {width} -> {outputs}", inputs, variants, moved, 2 * rows * width * outputs)


def cases() -> list[Case]:
    few = [gemv_case(name, rows, *shape) for rows in (1, 8, 16) for name, shape in LAYERS.items()]
    shapes = [LAYERS["8B qkv norm"], LAYERS["8B gate_up gated"], LAYERS["8B down add"], LAYERS["0.6B down add"]]
    invariant = [invariant_case(rows, *shape) for rows in (1, 64, 256, 8192) for shape in shapes]
    return few + invariant + [expert_case(tokens, *shape) for tokens in (1, 8, 64, 512, 4096) for shape in EXPERTS]


EXPERTS = [(2048, 1536), (768, 2048)]

if __name__ == "__main__":
    run("bench.kernels.gemm", cases)
