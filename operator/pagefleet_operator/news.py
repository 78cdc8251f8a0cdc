"""Events on an InferenceService: the value that every decision gives, and which change of a status is one. Pure."""

import hashlib
from datetime import datetime
from typing import Any, NamedTuple

from pagefleet_api import labels
from pagefleet_api.reasons import ConditionType, EventReason, Reason
from pagefleet_api.status import Condition, Status

_WARNINGS = frozenset(
    {
        EventReason.DRAIN_TIMED_OUT,
        EventReason.NOT_READY,
        EventReason.INVALID_SPEC,
        EventReason.TRIAL_SKIPPED,
        EventReason.ROLLED_BACK,
        EventReason.INTERNAL_ERROR,
    }
)
_QUIET = frozenset({Reason.STARTING, Reason.READING_MODEL, Reason.MODEL_NOT_CACHED, Reason.PAUSED})
"""Reasons of a service that is on its way, or does what it was asked for."""
_BURST = 20
_ONE_MORE_S = 300.0
_NOTE_LIMIT = 1024


class Ration(NamedTuple):
    """How many turns of a service may still be told: a pod that flaps must not bury everything else.

    Source: `EventSourceObjectSpamFilter` in client-go's tools/record: a burst, then one more every five minutes.
    """

    left: float = _BURST
    since: datetime | None = None

    def spent(self, now: datetime) -> "Ration | None":
        """What is left after one more; None when nothing is left now."""
        grown = 0.0 if self.since is None else max((now - self.since).total_seconds(), 0.0) / _ONE_MORE_S
        left = min(self.left + grown, _BURST)
        return Ration(left - 1, now) if left >= 1 else None


class News(NamedTuple):
    """An Event on an InferenceService: its reason and its words."""

    reason: EventReason
    message: str

    @property
    def warning(self) -> bool:
        """Somebody should look at it."""
        return self.reason in _WARNINGS


def event_body(namespace: str, name: str, uid: str, news: News, now: datetime) -> dict[str, Any]:
    """The Event's fields; the same words within the same minute have the same name."""
    words = f"{uid} {news.reason} {news.message} {now:%Y%m%d%H%M}"
    digest = hashlib.sha256(words.encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"{name[:200].rstrip('-.')}.{digest}", "namespace": namespace},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{labels.GROUP}/operator",
        "action": "Reconcile",
        "reason": news.reason,
        "type": "Warning" if news.warning else "Normal",
        "note": news.message[:_NOTE_LIMIT],
        "regarding": {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "namespace": namespace,
            "name": name,
            "uid": uid,
        },
    }


def turn(before: Status, after: Status) -> News | None:
    """The Event of a service that became ready, is ready no more, cannot come up for another cause, cannot be read, or
    makes the operator crash.

    A service that is only starting, or was paused, does what it was asked for.
    """
    crash = _crash(after)
    if crash is not None:
        return None if _crash(before) else News(EventReason.INTERNAL_ERROR, crash.message)
    old, new = _condition(before, ConditionType.READY), _condition(after, ConditionType.READY)
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return None
    if new.reason == Reason.INVALID_SPEC:
        return News(EventReason.INVALID_SPEC, new.message)
    was_ready = old is not None and old.status == "True"
    if new.status == "True":
        return None if was_ready else News(EventReason.READY, new.message)
    if new.reason not in _QUIET or (was_ready and new.reason != Reason.PAUSED):
        return News(EventReason.NOT_READY, f"{new.reason}: {new.message}")
    return None


def _condition(status: Status, kind: ConditionType) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == kind), None)


def _crash(status: Status) -> Condition | None:
    stalled = _condition(status, ConditionType.STALLED)
    return stalled if stalled is not None and stalled.reason == Reason.INTERNAL_ERROR else None
