"""The end of a pod's life as a pure state machine: what may still come in, and when the process may go.

Endpoints and kept connections lag behind a pod's label, so for `GRACE_S` after a drain begins new requests
are still served, each answer telling its connection to close. After that they are refused and what runs
finishes. All times are seconds on one monotonic clock, given by the caller.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

GRACE_S = 5.0


class Intake(Enum):
    """What happens to a new request."""

    SERVE = auto()
    SERVE_AND_CLOSE = auto()
    REFUSE = auto()


class Ending(Enum):
    """What the process does about its own end."""

    STAY = auto()
    LEAVE = auto()
    """Nothing is open: exit 0."""
    CUT = auto()
    """End every open answer with an error, then exit 0."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """`began_at_s`: `/drain` or SIGTERM, whichever came first; `terminating_at_s`: the first signal.

    The time limit runs from `began_at_s`: a pod that was told to drain and then to end gets it once.
    """

    began_at_s: float | None = None
    terminating_at_s: float | None = None
    cut: bool = False

    @property
    def draining(self) -> bool:
        """Whether the pod must not be ready."""
        return self.began_at_s is not None

    def drain(self, now_s: float) -> "DrainState":
        """`/drain`: the clock starts with the first call."""
        return self if self.draining else replace(self, began_at_s=now_s)

    def undrain(self) -> "DrainState | None":
        """`/undrain`: back to serving, or None once the process was told to end."""
        return None if self.terminating_at_s is not None else DrainState()

    def signal(self, now_s: float) -> "DrainState":
        """SIGTERM or SIGINT: the first begins the end, the second cuts it short."""
        if self.terminating_at_s is not None:
            return replace(self, cut=True)
        return replace(self.drain(now_s), terminating_at_s=now_s)

    def intake(self, now_s: float) -> Intake:
        """What happens to a request that arrives now."""
        if self.began_at_s is None:
            return Intake.SERVE
        if self.cut or now_s >= self.began_at_s + GRACE_S:
            return Intake.REFUSE
        return Intake.SERVE_AND_CLOSE

    def ending(self, now_s: float, *, open_requests: int, drain_timeout_s: float, was_ready: bool) -> Ending:
        """What to do about the process's end with `open_requests` still without their last byte.

        A process that never was ready has no traffic to wait for and leaves at once. Any other listens on
        until the grace is over, even idle: requests that were sent to it before the
        endpoints changed would otherwise meet a closed port.
        """
        if self.terminating_at_s is None or self.began_at_s is None:
            return Ending.STAY
        if self.cut or now_s >= self.began_at_s + drain_timeout_s:
            return Ending.CUT if open_requests else Ending.LEAVE
        if open_requests or (was_ready and now_s < self.began_at_s + GRACE_S):
            return Ending.STAY
        return Ending.LEAVE
