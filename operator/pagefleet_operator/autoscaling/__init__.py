"""How many pods a service needs: from samples to a number, with the reason."""

from pagefleet_operator.autoscaling.claims import Claim
from pagefleet_operator.autoscaling.decide import decide
from pagefleet_operator.autoscaling.next_steps import next_steps
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.values import Fleet, Memory, Outcome, PodLoad, Verdict

__all__ = [
    "Claim",
    "Fleet",
    "Memory",
    "Outcome",
    "PodLoad",
    "Policy",
    "Verdict",
    "decide",
    "next_steps",
]
