"""When a status is worth a write."""

from pagefleet_api.status import Status
from pagefleet_operator.observed import Now


def worth_writing(old: Status, new: Status, now: Now) -> bool:
    """Whether `new` tells a reader something that `old` (the live status) does not."""
    raise NotImplementedError
