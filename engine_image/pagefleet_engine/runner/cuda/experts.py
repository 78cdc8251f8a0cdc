"""A mixture of experts on a GPU: rows sorted by expert, one grouped product for all of them, nothing waits."""

import torch
from torch.nn import functional

from pagefleet_engine.kernels import activation, grouped_gemm
from pagefleet_engine.models.config import Experts, ModelConfig
from pagefleet_engine.models.layers import LayerWeights
from pagefleet_engine.runner.cuda.adapting import Linear


def mixed(
    normed: torch.Tensor, layer: LayerWeights, experts: Experts, config: ModelConfig, linear: Linear
) -> torch.Tensor:
    """[tokens, hidden size]: each token through its experts, weighed by the router's shares.

    The layer must have a router and its experts' weights. `linear` is the decoder's product: where it has a fixed
    order of sums, the experts' products have one too.
    """
    if layer.router is None or layer.expert_gate_up is None or layer.expert_down is None:
        raise ValueError("the layer has no experts")
    shares, chosen = linear(normed, layer.router, None).float().softmax(-1).topk(experts.per_token, -1)
    if experts.renormalise:
        shares = shares / shares.sum(-1, keepdim=True)
    routing = grouped_gemm.sort_by_expert(chosen, experts.count)
    fixed = linear is not functional.linear
    tile = grouped_gemm.choose(len(routing.order), experts.count, normed.dtype, batch_invariant=fixed)
    gate_up = grouped_gemm.experts_linear(normed, layer.expert_gate_up, routing, gather=True, tile=tile)
    inner = activation.gated(gate_up, config.activation)
    rows = grouped_gemm.experts_linear(inner, layer.expert_down, routing, gather=False, tile=tile)
    return grouped_gemm.combine(rows, shares.to(normed.dtype), routing)
