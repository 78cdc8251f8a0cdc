"""How long pods take to start, in phases, from the times that their status tells. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple, Self

from pagefleet_operator.facts.problems import Body, condition_of, parse_time

KEPT = 20
"""Starts that count, of a pool of nodes and of all: an older one was with another image or model."""
POOLS_KEPT = 8
"""Pools whose starts are kept: those of the latest starts."""

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
    pool: str | None = None
    """The pool of its node; None where that is not known."""

    @property
    def named(self) -> dict[str, float]:
        """Seconds by phase, as the metric calls them; those that are known."""
        seconds = (self.schedule_s, self.image_s, self.weights_s, self.warm_up_s)
        return {name: each for name, each in zip(PHASES, seconds, strict=True) if each is not None}

    @property
    def total_s(self) -> float:
        """From the pod's creation until it was ready."""
        return self.schedule_s + self.image_s + (self.weights_s or 0.0) + self.warm_up_s


@dataclass(frozen=True, slots=True)
class StartLog:
    """The starts of one service that were seen from their beginning, latest last."""

    phases: tuple[Phases, ...] = ()
    """The latest of all, and of each pool."""
    awaited: frozenset[str] = field(default_factory=frozenset)
    """Uids of pods that were seen before they were ready; others may have been ready before and not a while ago."""
    fresh: tuple[Phases, ...] = ()
    """Those of `phases` that came last time."""
    asks: bool = False
    """A start is over and its engine has not told its part yet."""

    def learn(
        self,
        starts: Mapping[str, Start],
        told: Mapping[str, float | None],
        wall: datetime,
        pools: Mapping[str, str] = MappingProxyType({}),
    ) -> "StartLog":
        """With what is seen now, by uid. A start counts once its engine was asked for its part, or had time to tell.

        told: seconds that its weights took, of each engine that was asked; None where it has no such thing.
        pools: of the pods' nodes, where they are known.
        """
        found = []
        for uid in self.awaited & starts.keys():
            start = starts[uid]
            phases = start.phases(told.get(uid))
            late = start.ready is not None and wall - start.ready > PATIENCE
            if phases is not None and (uid in told or late):
                found.append((uid, phases._replace(pool=pools.get(uid))))
        done = {uid for uid, _ in found}
        unready = {uid for uid, start in starts.items() if start.ready is None}
        left = (self.awaited & starts.keys()) - done
        fresh = tuple(phases for _, phases in sorted(found, key=lambda each: each[0]))
        return StartLog(_kept((*self.phases, *fresh)), frozenset(left | unready), fresh, bool(left - unready))

    @property
    def latest(self) -> "StartLog":
        """The latest starts, whatever their pool."""
        return StartLog(self.phases[-KEPT:])

    @property
    def by_pool(self) -> Mapping[str, "StartLog"]:
        """The starts in each pool that is known; the one where a pod started last comes first."""
        names = dict.fromkeys(phases.pool for phases in reversed(self.phases) if phases.pool is not None)
        return {name: StartLog(tuple(each for each in self.phases if each.pool == name)[-KEPT:]) for name in names}

    @property
    def expected_s(self) -> float | None:
        """How long the next pod may take: the median of the pool where pods landed last; None without any start."""
        pool = self.phases[-1].pool if self.phases else None
        return (self.latest if pool is None else self.by_pool[pool]).quantile(0.5)

    def quantile(self, share: float) -> float | None:
        """The total, in seconds, that a `share` of the starts (0..1) stayed at or below; None without any."""
        return _quantile([phases.total_s for phases in self.phases], share)

    def medians(self) -> Phases:
        """Of each phase by itself; there must be a start."""
        told = [phases.weights_s for phases in self.phases if phases.weights_s is not None]
        return Phases(
            _quantile([phases.schedule_s for phases in self.phases], 0.5) or 0.0,
            _quantile([phases.image_s for phases in self.phases], 0.5) or 0.0,
            _quantile(told, 0.5),
            _quantile([phases.warm_up_s for phases in self.phases], 0.5) or 0.0,
        )


def _kept(phases: tuple[Phases, ...]) -> tuple[Phases, ...]:
    """The latest starts of all and of each of the latest pools, in their order."""
    pools = [*dict.fromkeys(each.pool for each in reversed(phases))][:POOLS_KEPT]
    numbered = [*enumerate(phases)]
    kept = dict(numbered[-KEPT:])
    for pool in pools:
        kept |= dict([(number, each) for number, each in numbered if each.pool == pool][-KEPT:])
    return tuple(kept[number] for number in sorted(kept))


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
