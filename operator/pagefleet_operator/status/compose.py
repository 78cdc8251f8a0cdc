"""The status as a whole."""

from collections.abc import Sequence

from pagefleet_api.service import InferenceService
from pagefleet_api.status import Status
from pagefleet_operator.autoscaling.values import Outcome
from pagefleet_operator.observed import Now, Observed
from pagefleet_operator.plan.convergence import Conflict


def service_status(
    service: InferenceService,
    observed: Observed,
    wanted: int,
    outcome: Outcome | None,
    previous: Status,
    now: Now,
    *,
    conflicts: Sequence[Conflict] = (),
    apply_error: str | None = None,
) -> Status:
    """The status to report. `outcome` is None for fixed replicas; `apply_error` is the API server's refusal, if any.

    `previous` is the last status written (or read): transition times, the history and the last scale time come from it.
    """
    raise NotImplementedError


def invalid_status(message: str, generation: int, previous: Status, now: Now) -> Status:
    """For an object that cannot be parsed: `previous` with Ready=False/InvalidSpec and the generation."""
    raise NotImplementedError
