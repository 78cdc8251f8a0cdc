"""Whether a model is on its claim, and what is to be done about it. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from pagefleet_api import labels
from pagefleet_api.download import DownloadProgress
from pagefleet_api.reasons import Reason
from pagefleet_api.wording import some
from pagefleet_operator.facts.observed import Body, Pod
from pagefleet_operator.facts.problems import condition_of

NOTHING_TOLD: Mapping[str, DownloadProgress] = MappingProxyType({})
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (0, "bytes"))


class Stage(Enum):
    """How far a model is."""

    CACHED = "cached"
    FETCHING = "fetching"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class Own:
    """Give a live Job these owners: another service shares its download."""

    live: Body
    owners: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Where the download of a service's model is, in words too, and the writes that bring it on."""

    stage: Stage
    message: str
    create: Mapping[str, Any] | None = None
    own: Own | None = None
    remove: tuple[Body, ...] = ()


def together(found: Mapping[str, Prefetch]) -> Prefetch:
    """How far several are that pods need, by what each is called: as far as the last of them, in its words; where many
    are as far, in those of the first.
    """
    if len(found) == 1:
        return next(iter(found.values()))
    stages = {prefetch.stage for prefetch in found.values()}
    stage = next(stage for stage in (Stage.FAILING, Stage.FETCHING, Stage.CACHED) if stage in stages)
    told = [f"{name}: {prefetch.message}" for name, prefetch in found.items() if prefetch.stage is stage]
    return Prefetch(stage, some(told, "; "))


def plan_prefetch(
    wanted: Body,
    digests: Collection[str],
    jobs: Sequence[Body],
    pods: Sequence[Pod],
    seen: Collection[str],
    told: Mapping[str, DownloadProgress] = NOTHING_TOLD,
) -> Prefetch:
    """For the Job that a service wants.

    wanted: the Job as it would be made now. digests: its digest as each service that shares it would make it.
    jobs: live Jobs of the namespace. pods: those of the live Job. seen: uids of the services that we know; a Job that
    another operator's service owns too is left as it is. told: what pods said lately of how far they are, by uid.
    """
    name = wanted["metadata"]["name"]
    live = next((job for job in jobs if job["metadata"]["name"] == name), None)
    if live is None:
        return Prefetch(Stage.FETCHING, f"Job {name} is made, which downloads the model", create=wanted)
    if live["metadata"].get("deletionTimestamp") is not None:
        return Prefetch(Stage.FETCHING, f"Job {name} is being removed, then it is made anew")
    status = live.get("status") or {}
    if (condition_of(status, "Complete") or {}).get("status") == "True":
        return Prefetch(Stage.CACHED, f"Job {name} has downloaded it", own=_own(wanted, live))
    failed = condition_of(status, "Failed") or {}
    if failed.get("status") == "True":
        words = f"Job {name} gave up and is made anew: {failed.get('message') or failed.get('reason')}"
        return Prefetch(Stage.FAILING, words, remove=(live,))
    if (live["metadata"].get("annotations") or {}).get(labels.FETCH_DIGEST) not in digests and owner_uids(live) <= set(
        seen
    ):
        return Prefetch(Stage.FETCHING, f"Job {name} is made anew, as the service has changed", remove=(live,))
    return _under_way(name, _own(wanted, live), pods, told)


def superfluous(uid: str, needed: Collection[str], jobs: Sequence[Body], seen: Collection[str]) -> tuple[Body, ...]:
    """Jobs that the service with this uid owns and none of its owners needs: those whose name is not in `needed`.

    An owner that we do not know may be another operator's, or gone, which the garbage collector will tell.
    """
    mine = (job for job in jobs if uid in owner_uids(job) and owner_uids(job) <= set(seen))
    return tuple(job for job in mine if job["metadata"]["name"] not in needed)


def _under_way(name: str, own: Own | None, pods: Sequence[Pod], told: Mapping[str, DownloadProgress]) -> Prefetch:
    problems = [pod.problem for pod in pods if pod.active and pod.problem is not None]
    grave = [problem for problem in problems if problem.reason is not Reason.STARTING]
    if grave:
        waits = grave[0].reason is Reason.UNSCHEDULABLE
        return Prefetch(Stage.FETCHING if waits else Stage.FAILING, f"Job {name}: {grave[0].message}", own=own)
    known = [how_far(told[pod.uid]) for pod in pods if pod.active and pod.uid in told]
    words = known[0] if known else f"kubectl logs job/{name} tells how far"
    return Prefetch(Stage.FETCHING, f"Job {name} downloads it; {words}", own=own)


def how_far(progress: DownloadProgress) -> str:
    """For people: 12.3 of 40.0 GiB (30 %), 118.0 MiB/s, 4 min left."""
    words, rate, left_s = _bytes(progress.bytes, progress.total_bytes), progress.bytes_per_second, progress.seconds_left
    if rate is None:
        return words
    if rate == 0:
        return f"{words}, nothing comes at the moment"
    words = f"{words}, {rate / 2**20:.1f} MiB/s"
    return words if left_s is None else f"{words}, {_duration(left_s)} left"


def _bytes(here: int, total: int | None) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if (here if total is None else total) >= size)
    said = f"{here / size:.1f}" if size else f"{here}"
    if total is None:
        return f"{said} {unit} so far"
    share = min(100 * here // max(total, 1), 100)
    return f"{said} of {total / size:.1f} {unit} ({share} %)" if size else f"{said} of {total} {unit} ({share} %)"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _own(wanted: Body, live: Body) -> Own | None:
    """The owners that a live Job lacks, beside those that it has."""
    has, known = live["metadata"].get("ownerReferences") or (), owner_uids(live)
    lacks = [owner for owner in wanted["metadata"]["ownerReferences"] if owner["uid"] not in known]
    return Own(live, (*has, *lacks)) if lacks else None


def owner_uids(job: Body) -> set[str]:
    """Of the services that a Job is for."""
    return {owner["uid"] for owner in job["metadata"].get("ownerReferences") or ()}
