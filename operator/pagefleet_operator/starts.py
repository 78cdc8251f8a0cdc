"""How long pods take to start, in phases, from the times that their status tells. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, Self

from pagefleet_operator.problems import Body, condition_of, parse_time

KEPT = 20
"""Starts that count: an older one was on another node, with another image or model."""


PHASES = ("schedule", "image", "weights", "warm_up")
PATIENCE = timedelta(seconds=30)
"""An engine that has not told its part of the start by then will not."""


class Start(NamedTuple):
    """When a pod came how far; None where it is not there yet, or has left that point behind by a restart."""

    created: datetime | None = None
    scheduled: datetime | None = None
    began: datetime | None = None
    """Its engine's container began to run: image and model are there by then."""
    ready: datetime | None = None

    @classmethod
    def of(cls, meta: Body, status: Body, container: Body) -> Self:
        """From a pod as the API server gives it; `container` is its engine's status."""
        running = (container.get("state") or {}).get("running") or {}
        first = not container.get("restartCount")
        return cls(
            created=parse_time(meta.get("creationTimestamp")),
            scheduled=_since(status, "PodScheduled"),
            began=parse_time(running.get("startedAt")) if first else None,
            ready=_since(status, "Ready") if first else None,
        )

    def phases(self, weights_s: float | None) -> "Phases | None":
        """Once it is ready at the first try; `weights_s` as the engine tells it."""
        if self.created is None or self.scheduled is None or self.began is None or self.ready is None:
            return None
        engine_s = max((self.ready - self.began).total_seconds(), 0.0)
        loading_s = None if weights_s is None else min(weights_s, engine_s)
        return Phases(
            schedule_s=max((self.scheduled - self.created).total_seconds(), 0.0),
            image_s=max((self.began - self.scheduled).total_seconds(), 0.0),
            weights_s=loading_s,
            warm_up_s=engine_s - (loading_s or 0.0),
        )


class Phases(NamedTuple):
    """One start in parts that follow one another."""

    schedule_s: float
    """Until the scheduler had a node for it."""
    image_s: float
    """Until its container ran: image, volumes, and whatever brings the model to the node."""
    weights_s: float | None
    """Until the engine had its weights; None where it does not tell, and then they are part of the next."""
    warm_up_s: float
    """Until it was ready."""

    @property
    def named(self) -> dict[str, float]:
        """Seconds by phase, as the metric calls them; those that are known."""
        return {name: seconds for name, seconds in zip(PHASES, self, strict=True) if seconds is not None}

    @property
    def total_s(self) -> float:
        """From the pod's creation until it was ready."""
        return self.schedule_s + self.image_s + (self.weights_s or 0.0) + self.warm_up_s


@dataclass(frozen=True, slots=True)
class StartLog:
    """The starts of one service that were seen from their beginning, latest last."""

    phases: tuple[Phases, ...] = ()
    awaited: frozenset[str] = field(default_factory=frozenset)
    """Uids of pods that were seen before they were ready; others may have been ready before and not a while ago."""
    fresh: tuple[Phases, ...] = ()
    """Those of `phases` that came last time."""
    asks: bool = False
    """A start is over and its engine has not told its part yet."""

    def learn(self, starts: Mapping[str, Start], told: Mapping[str, float | None], wall: datetime) -> "StartLog":
        """With what is seen now, by uid. A start counts once its engine was asked for its part, or had time to tell.

        told: seconds that its weights took, of each engine that was asked; None where it has no such thing.
        """
        found = []
        for uid in self.awaited & starts.keys():
            start = starts[uid]
            phases = start.phases(told.get(uid))
            late = start.ready is not None and wall - start.ready > PATIENCE
            if phases is not None and (uid in told or late):
                found.append((uid, phases))
        done = {uid for uid, _ in found}
        unready = {uid for uid, start in starts.items() if start.ready is None}
        left = (self.awaited & starts.keys()) - done
        fresh = tuple(phases for _, phases in sorted(found))
        return StartLog((*self.phases, *fresh)[-KEPT:], frozenset(left | unready), fresh, bool(left - unready))

    def quantile(self, share: float) -> float | None:
        """The total, in seconds, that a `share` of the starts (0..1) stayed at or below; None without any."""
        return _quantile([phases.total_s for phases in self.phases], share)

    def medians(self) -> Phases | None:
        """Of each phase by itself; None without any start."""
        if not self.phases:
            return None
        told = [phases.weights_s for phases in self.phases if phases.weights_s is not None]
        return Phases(
            _quantile([phases.schedule_s for phases in self.phases], 0.5) or 0.0,
            _quantile([phases.image_s for phases in self.phases], 0.5) or 0.0,
            _quantile(told, 0.5),
            _quantile([phases.warm_up_s for phases in self.phases], 0.5) or 0.0,
        )


def _since(status: Body, kind: str) -> datetime | None:
    condition = condition_of(status, kind) or {}
    return parse_time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _quantile(values: Iterable[float], share: float) -> float | None:
    """The nearest rank: a value that was measured."""
    ordered = sorted(values)
    if not ordered:
        return None
    rank = -int(-share * len(ordered) // 1)
    return ordered[max(rank, 1) - 1]
