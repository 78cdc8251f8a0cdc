"""Whether the engine is alive, from what was last heard of its core; pure."""

from dataclasses import dataclass

LOOP_BOUND_S = 10.0
"""The API process's loop comes round several times a second."""
HEARTBEAT_BOUND_S = 10.0
"""Heartbeats come at least every half second while idle, loading or within a step that makes progress."""
STEP_BOUND_S = 10.0
"""Longest that a step may make no progress while requests are open."""
FIRST_HEARTBEAT_BOUND_S = 120.0
"""A core says nothing while its interpreter imports; on a starved CPU that takes a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSeen:
    """What the API process knows of the core; times on one monotonic clock, in seconds."""

    started_at_s: float
    loop_beat_at_s: float
    """When the API process's own event loop last came round."""
    heard_at_s: float | None
    failure: str | None
    busy_since_s: float | None
    """When the core last went from no request to some; None while it has none."""
    since_last_step_s: float
    """Age of the latest step or progress when the core was last heard."""


def step_age_s(*, told_s: float, silent_s: float, busy_s: float | None) -> float:
    """Seconds for which the core has had requests and has made no progress.

    `told_s` is the age of its latest step or progress as it said `silent_s` ago; `busy_s` is how long it has
    had requests, None while it has none: a step that is older than they are says nothing.
    """
    return 0.0 if busy_s is None else min(told_s + silent_s, busy_s)


def ailment(seen: CoreSeen, now_s: float) -> str | None:
    """Why the engine is not alive, or None while it is."""
    if seen.failure is not None:
        return seen.failure
    if now_s - seen.loop_beat_at_s > LOOP_BOUND_S:
        return f"the API process has been stuck for {now_s - seen.loop_beat_at_s:.0f} s"
    if seen.heard_at_s is None:
        waited_s = now_s - seen.started_at_s
        if waited_s > FIRST_HEARTBEAT_BOUND_S:
            return f"the core has said nothing for {waited_s:.0f} s since its start"
        return None
    silent_s = now_s - seen.heard_at_s
    if silent_s > HEARTBEAT_BOUND_S:
        return f"the core has said nothing for {silent_s:.0f} s"
    busy_s = None if seen.busy_since_s is None else now_s - seen.busy_since_s
    stuck_s = step_age_s(told_s=seen.since_last_step_s, silent_s=silent_s, busy_s=busy_s)
    if stuck_s > STEP_BOUND_S:
        return f"no step has ended for {stuck_s:.0f} s while requests are open"
    return None
