"""The gated activation between an MLP's two matrices, in plain torch."""

import torch
from torch.nn import functional

from pagefleet_engine.models.config import Activation


def gated(gate_up: torch.Tensor, kind: Activation) -> torch.Tensor:
    """act(gate) * up: [rows, 2 x inner], gate first, to [rows, inner]."""
    gate, up = gate_up.chunk(2, -1)
    acted = functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
    return acted.mul_(up)
