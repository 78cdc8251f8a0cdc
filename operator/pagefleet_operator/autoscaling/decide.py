"""The decision itself."""

from pagefleet_operator.autoscaling.values import Fleet, Memory, Outcome, Policy
from pagefleet_operator.observed import Now


def decide(policy: Policy, fleet: Fleet, memory: Memory | None, now: Now) -> Outcome:
    """Replicas for `fleet`, and why. Keep `outcome.memory` for the next call; None after a restart."""
    raise NotImplementedError
