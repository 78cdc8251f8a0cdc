"""Small fleets and traces."""

from typing import Any

from pagefleet_api.step_costs import StepCosts
from pagefleet_cli.simulation import EngineModel, FleetModel, Request, Trace

COSTS = StepCosts(
    name="ten tokens a second",
    source="made up",
    fixed_s=0.0,
    weights_s=0.1,
    token_s=0.0001,
    context_token_s=0.0,
    pair_s=0.0,
    num_kv_blocks=1000,
)
"""A step takes 0.1 s whatever it computes, up to a thousand tokens."""


def engine(**given: Any) -> EngineModel:
    """With these costs, eight seats, and room for all that they may hold."""
    return EngineModel(**{"costs": COSTS, "kv_tokens": 16_000, "max_num_seqs": 8, "itl_goal_s": 10.0, **given})


def fleet(*, start_s: float = 10.0, drain_timeout_s: float = 600.0, **given: Any) -> FleetModel:
    """Pods that all take `start_s` to start."""
    return FleetModel(engine=engine(**given), start_p50_s=start_s, start_p95_s=start_s, drain_timeout_s=drain_timeout_s)


def steady(per_s: float, until_s: float, since_s: float = 0.0, *, prompt: int = 10, output: int = 50) -> list[Request]:
    """Requests at equal distances, of five seconds each with the costs here."""
    return [Request(since_s + place / per_s, prompt, output) for place in range(round((until_s - since_s) * per_s))]


def trace(*requests: Request) -> Trace:
    """These requests."""
    return Trace(requests)
