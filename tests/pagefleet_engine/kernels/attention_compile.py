"""Program: compiles the attention kernels' main variants without a GPU; one JSON line each, see `compiling`."""

import json
from collections.abc import Callable, Iterator
from functools import partial

import torch

from pagefleet_engine.kernels.decode_attention import choose_decode_config, decode_attention, decode_scratch
from pagefleet_engine.kernels.prefill_attention import choose_prefill_config, prefill_attention
from tests.pagefleet_engine.kernels.attention_cases import Heads, Kind
from tests.pagefleet_engine.kernels.compiling import CAPABILITIES, recorded, usage

BF16 = torch.bfloat16
KINDS = {
    "128": Kind(Heads(32, 8, 128), dtype=BF16),
    "256, window, cap": Kind(Heads(8, 4, 256), window=4096, soft_cap=50.0, dtype=BF16),
}
INDEX = torch.zeros(2, dtype=torch.int32)


def decode(kind: Kind, splits: int, pdl: bool) -> object:
    heads, device = kind.heads, torch.device("cpu")
    rows = torch.zeros(1, heads.queries, heads.size, dtype=kind.dtype)
    kv = torch.zeros(2, 2, heads.kv, 16, heads.size, dtype=kind.dtype)
    return decode_attention(
        rows, kv, INDEX[:, None], INDEX[:1], INDEX[:1], rows, scale=1.0, splits=splits,
        scratch=decode_scratch(1, splits, heads.queries, heads.size, device), window=kind.window,
        soft_cap=kind.soft_cap, config=choose_decode_config(heads.size, 2, splits), pdl=pdl,
    )  # fmt: skip


def prefill(kind: Kind, max_tokens: int, capability: tuple[int, int], sections: int = 1) -> object:
    heads = kind.heads
    rows = torch.zeros(max_tokens, heads.queries, heads.size, dtype=kind.dtype)
    kv = torch.zeros(2, 2, heads.kv, 16, heads.size, dtype=kind.dtype)
    config = choose_prefill_config(heads.size, 2, max_tokens * heads.queries // heads.kv, capability)
    return prefill_attention(
        rows, kv, INDEX[:, None], INDEX[:1], INDEX, INDEX[:1], rows, scale=1.0, max_tokens=max_tokens,
        window=kind.window, soft_cap=kind.soft_cap, config=config, sections=sections,
        scratch=decode_scratch(0, max_tokens * sections, heads.queries, heads.size, torch.device("cpu")),
    )  # fmt: skip


def cases(capability: int) -> Iterator[tuple[str, Callable[[], object]]]:
    for name, kind in KINDS.items():
        yield f"decode {name}", partial(decode, kind, 8, capability >= 90)
        yield f"prefill {name}", partial(prefill, kind, 512, (capability // 10, 0))


def main() -> None:
    for capability in CAPABILITIES:
        for name, case in cases(capability):
            with recorded() as launches:
                case()
            for launch in launches:
                print(json.dumps({"case": name, **usage(launch, capability)._asdict()}), flush=True)


if __name__ == "__main__":
    main()
