"""A mixture of experts in plain torch: only the experts that some token chose are computed."""

import torch
from torch.nn import functional

from pagefleet_engine.models.activation import gated
from pagefleet_engine.models.config import Activation, Experts
from pagefleet_engine.models.layers import LayerWeights


def choose(hidden: torch.Tensor, router: torch.Tensor, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's experts, most liked first, and their weights in `hidden`'s number format: [rows, per token]."""
    liked = functional.linear(hidden, router).float().softmax(-1)
    weights, chosen = liked.topk(experts.per_token, -1)
    if experts.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return chosen, weights.to(hidden.dtype)


def mixed(hidden: torch.Tensor, layer: LayerWeights, experts: Experts, activation: Activation) -> torch.Tensor:
    """What the chosen experts make of each row, by their weights: [rows, hidden size]."""
    if layer.router is None or layer.expert_gate_up is None or layer.expert_down is None:
        raise ValueError("this layer has no experts")
    chosen, weights = choose(hidden, layer.router, experts)
    output = torch.zeros_like(hidden)
    for expert in chosen.unique().tolist():
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        inner = gated(functional.linear(hidden[rows], layer.expert_gate_up[expert]), activation)
        given = functional.linear(inner, layer.expert_down[expert])
        output.index_add_(0, rows, given * weights[rows, place, None])
    return output
