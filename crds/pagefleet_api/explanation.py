"""What the operator's `/decisions` answers: a service's latest decisions, and what would change the number next."""

from pydantic import Field

from pagefleet_api.schema import Model
from pagefleet_api.status import Decision


class Threshold(Model):
    """A metric's demand over all pods, and where it changes the answer; seconds for a time."""

    type: str = Field(description="As in spec.autoscaling.metrics.")
    demand: float
    limit: float


class NextSteps(Model):
    """What moves the number from where it is.

    up: one demand above its limit is enough. down: all must be at or below theirs, silent pods counting as at target.
    up_held_by, down_held_by: what keeps it from moving whatever the load, in words.
    down_after_seconds: until it may fall if the load allows it from now on; None while something holds it.
    """

    up: tuple[Threshold, ...] = ()
    down: tuple[Threshold, ...] = ()
    up_held_by: tuple[str, ...] = ()
    down_held_by: tuple[str, ...] = ()
    down_after_seconds: float | None = None


class Explanation(Model):
    """The trail of one service, newest last; `next_steps` is None for fixed replicas."""

    namespace: str
    name: str
    decisions: tuple[Decision, ...] = ()
    next_steps: NextSteps | None = None
