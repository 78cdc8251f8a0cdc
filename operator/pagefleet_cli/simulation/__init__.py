"""A fleet played in simulated time: requests, engines as queues, and the controller's own decision. Pure.

run = play(policy, trace, fleet)
timeline(policy, trace, fleet)  # the numbers of pods alone
"""

from pagefleet_cli.simulation.comparison import Agreement, agreement
from pagefleet_cli.simulation.fleet import play, timeline
from pagefleet_cli.simulation.summary import Summary, summarise
from pagefleet_cli.simulation.values import (
    Balancing,
    EngineModel,
    FleetModel,
    Moment,
    Refusal,
    Refused,
    Request,
    Run,
    Trace,
)

__all__ = [
    "Agreement",
    "Balancing",
    "EngineModel",
    "FleetModel",
    "Moment",
    "Refusal",
    "Refused",
    "Request",
    "Run",
    "Summary",
    "Trace",
    "agreement",
    "play",
    "summarise",
    "timeline",
]
