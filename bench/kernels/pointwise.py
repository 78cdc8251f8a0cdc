"""Speed of norms, rotary embedding, activations and the sampler: `python -m bench.kernels.pointwise [--json OUT]`.

Shapes of Llama 8B and Qwen3 0.6B beside torch's operations; a star marks what the launcher chooses. The percentage
is of the memory's rate, so at few rows it says how much of the time is the launch.
"""

from functools import partial

import torch
from torch.nn import functional

from bench.kernels.cases import Case, Inputs, Variant, run
from pagefleet_engine.kernels import candidates, norm, rope, sampling
from pagefleet_engine.kernels.activation import gated

EPS = 1e-5
ROWS = (1, 8, 64, 256, 8192)
NORM_WARPS = (1, 2, 4, 8, 16)
GATED_CUTS = [(256, 1), (512, 2), (1024, 4), (2048, 8), (2048, 4), (4096, 8)]
SAMPLE_CUTS = [(512, 2), (1024, 4), (2048, 1), (2048, 2), (4096, 2), (4096, 4), (8192, 4)]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def norm_case(rows: int, width: int) -> Case:
    def fused(warps: int | None) -> Variant:
        return lambda inputs: norm.add_rms_norm(inputs["delta"], inputs["residual"], inputs["weight"], EPS, warps=warps)

    def separate(inputs: Inputs) -> torch.Tensor:
        inputs["residual"].add_(inputs["delta"])
        return functional.rms_norm(inputs["residual"], (width,), inputs["weight"], EPS)

    def inputs() -> Inputs:
        return {"delta": random(rows, width), "residual": random(rows, width), "weight": random(width)}

    variants: dict[str, Variant] = {"torch add and rms_norm": separate, "chosen *": fused(None)}
    variants |= {f"{warps} warps": fused(warps) for warps in NORM_WARPS}
    return Case(f"add and norm, {rows} x {width}", inputs, variants, 8 * rows * width, changed="residual")


def gated_case(rows: int, inner: int) -> Case:
    def fused(cut: tuple[int, int] | None) -> Variant:
        return lambda inputs: gated(inputs["gate_up"], "silu", cut=cut)

    def separate(inputs: Inputs) -> torch.Tensor:
        gate, up = inputs["gate_up"].chunk(2, 1)
        return functional.silu(gate) * up

    variants: dict[str, Variant] = {"torch silu and product": separate, "chosen *": fused(None)}
    variants |= {f"{cut[0]} columns {cut[1]} warps": fused(cut) for cut in GATED_CUTS}
    return Case(f"gated, {rows} x {inner}", lambda: {"gate_up": random(rows, 2 * inner)}, variants, 6 * rows * inner)


def rope_case(rows: int, heads: int, kv_heads: int, norms: bool) -> Case:
    """The rotation alone is torch's here; a head norm and the write into paged memory would come on top."""
    size, blocks = 128, max(rows // 16, 1) * 2
    width = (heads + 2 * kv_heads) * size

    def inputs() -> Inputs:
        angles = torch.rand(4096, size // 2, device="cuda")
        return {
            "qkv": random(rows, width),
            "positions": torch.randint(4096, (rows,), device="cuda", dtype=torch.int32),
            "table": torch.cat([angles.cos(), angles.sin()], 1),
            "slots": torch.randperm(blocks * 16, device="cuda")[:rows].int(),
            "kv": random(blocks + 1, 2, kv_heads, 16, size),
            "norm": torch.ones(size, device="cuda", dtype=torch.bfloat16),
        }

    def fused(inputs: Inputs) -> torch.Tensor:
        weight = inputs["norm"] if norms else None
        rope.rope_and_cache(
            inputs["qkv"], inputs["positions"], inputs["table"], inputs["slots"], inputs["kv"], heads=heads,
            kv_heads=kv_heads, head_size=size, rotary_size=size, query_norm=weight, key_norm=weight, eps=EPS,
        )  # fmt: skip
        return inputs["qkv"]

    def separate(inputs: Inputs) -> torch.Tensor:
        values = inputs["qkv"][:, : (heads + kv_heads) * size].view(rows, -1, size)
        cosines, sines = inputs["table"][inputs["positions"].long()].bfloat16()[:, None].chunk(2, -1)
        first, second = values.chunk(2, -1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)

    variants: dict[str, Variant] = {"chosen *": fused, "torch rotation alone": separate}
    moved = 2 * rows * size * (2 * heads + 4 * kv_heads)
    return Case(f"rope {heads}+{kv_heads} heads{', norms' * norms}, {rows} rows", inputs, variants, moved)


def sample_case(rows: int, vocab: int, dtype: torch.dtype) -> Case:
    def inputs() -> Inputs:
        return {
            "logits": torch.randn(rows, vocab, device="cuda").to(dtype),
            "temperature": torch.full((rows,), 0.6, device="cuda"),
            "seeds": torch.arange(rows, device="cuda"),
            "positions": torch.arange(rows, device="cuda", dtype=torch.int32),
            "tokens": torch.empty(rows, device="cuda", dtype=torch.int32),
        }

    def drawn(cut: tuple[int, int] | None, inputs: Inputs) -> torch.Tensor:
        sampling.sample(
            inputs["logits"], inputs["temperature"], inputs["seeds"], inputs["positions"], inputs["tokens"], cut=cut
        )
        return inputs["tokens"]

    def softmax(inputs: Inputs) -> torch.Tensor:
        weights = (inputs["logits"].float() / 0.6).softmax(-1)
        return (weights / torch.empty_like(weights).exponential_()).argmax(-1)

    def argmax(inputs: Inputs) -> torch.Tensor:
        return inputs["logits"].argmax(-1)

    variants: dict[str, Variant] = {"chosen *": partial(drawn, None)}
    variants |= {f"{cut[0]} tokens {cut[1]} warps": partial(drawn, cut) for cut in SAMPLE_CUTS}
    variants |= {"torch softmax and noise": softmax, "torch argmax": argmax}
    moved = rows * vocab * torch.empty((), dtype=dtype).element_size()
    return Case(f"sample {str(dtype)[6:]}, {rows} x {vocab}", inputs, variants, moved)


def restricted_case(rows: int, vocab: int) -> Case:
    def inputs() -> Inputs:
        return {
            "logits": torch.randn(rows, vocab, device="cuda") * 3,
            "temperature": torch.full((rows,), 0.6, device="cuda"),
            "top_k": torch.full((rows,), 50, device="cuda", dtype=torch.int32),
            "top_p": torch.full((rows,), 0.9, device="cuda"),
            "min_p": torch.zeros(rows, device="cuda"),
            "seeds": torch.arange(rows, device="cuda"),
            "positions": torch.arange(rows, device="cuda", dtype=torch.int32),
        }

    def drawn(inputs: Inputs) -> torch.Tensor:
        return candidates.restricted_sample(
            inputs["logits"], inputs["temperature"], inputs["top_k"], inputs["top_p"], inputs["min_p"],
            inputs["seeds"], inputs["positions"],
        )  # fmt: skip

    def ordered(inputs: Inputs) -> torch.Tensor:
        return inputs["logits"].sort(descending=True).values[:, 0]

    return Case(
        f"top-k and top-p, {rows} x {vocab}", inputs, {"chosen *": drawn, "torch sort": ordered}, 4 * rows * vocab
    )


def cases() -> list[Case]:
    return [
        *(norm_case(rows, width) for rows in ROWS for width in (1024, 4096)),
        *(gated_case(rows, inner) for rows in ROWS for inner in (3072, 14336)),
        *(rope_case(rows, *shape) for rows in ROWS for shape in ((32, 8, False), (16, 8, True))),
        *(sample_case(rows, 128256, torch.bfloat16) for rows in (1, 8, 64, 256, 512)),
        *(sample_case(rows, 151936, torch.float32) for rows in (1, 256)),
        *(restricted_case(rows, 128256) for rows in (1, 8, 64)),
    ]


if __name__ == "__main__":
    run("bench.kernels.pointwise", cases)
