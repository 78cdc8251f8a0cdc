"""Whether one more request may wait, decided without asking the core."""

import math

MAX_RETRY_AFTER_S = 60.0


def capacity(*, max_num_seqs: int, max_queued: int, running: int, waiting: int) -> int:
    """Sequences that may be open: `max_queued` more than have a seat.

    `running` and `waiting` are those of the core's latest pass. While some wait, the seats are what runs
    (memory may seat fewer than `max_num_seqs`); while none does, every seat counts, taken or not.
    """
    return max_queued + (running if waiting else max_num_seqs)


def retry_after_s(*, waiting: int, seats: int, mean_duration_s: float | None) -> float:
    """Seconds until a place in the queue is likely, from how long answers took; 1 to 60."""
    if mean_duration_s is None or seats < 1:
        return 1.0
    return float(min(max(math.ceil(mean_duration_s / seats * max(waiting, 1)), 1), MAX_RETRY_AFTER_S))
