"""Whether a roll-out of groups makes progress: LeaderWorkerSets have no deadline of their own. Pure.

As for Deployments (kubernetes/pkg/controller/deployment/progress.go) progress is one more pod of the latest template
than ever, one more that is ready, or one less of an earlier template; a roll-out that was complete once is never late,
whatever becomes of its pods.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from pagefleet_api import labels
from pagefleet_operator.facts.observed import Body, DeploymentView, Now, Observed, Pod, parse_time
from pagefleet_operator.kinds import GROUP_SET


class Headway(NamedTuple):
    """How far the roll-out of a template has ever been, and when it came so far."""

    template: str | None
    made: int
    ready: int
    earlier: int
    """Replicas of other templates, the fewest so far."""
    complete: bool
    since: datetime

    @property
    def completed(self) -> str | None:
        """The template, once it was complete: what the set is to remember for a later operator."""
        return self.template if self.complete else None

    def overdue(self, deadline_s: int, now: Now) -> str | None:
        """What to say of a roll-out that made no progress for so long; None of others."""
        if self.complete or (now.wall - self.since).total_seconds() < deadline_s:
            return None
        words = f"no progress for {deadline_s} s (rollout.progressDeadlineSeconds)"
        return f"{words}: {self.made} groups of the latest template were made, {self.ready} became ready"


def follow(before: Headway | None, observed: Observed, wanted: int, now: Now) -> Headway | None:
    """How far it is now; None where replicas are no groups. `before` may be lost: then the set tells whether it was
    complete, and the objects when something happened last. No time passes while the set is asked for no group, as while
    the model is on its way.
    """
    live = observed.deployment
    if live is None or not observed.grouped:
        return None
    mine = [pod for pod in observed.pods if pod.active and observed.own(pod) and pod.template_hash == live.template]
    ready = sum(_whole(pod, observed, live) for pod in mine)
    earlier = sum(pod.active for pod in observed.pods) - len(mine)
    complete = live.was_complete or (ready >= wanted and len(mine) >= wanted and not earlier)
    found = Headway(live.template, len(mine), ready, earlier, complete, now.wall)
    if before is None:
        return found._replace(since=max(_moments(observed) if live.replicas else (), default=now.wall))
    if before.template != found.template:
        return found
    best = Headway(
        found.template,
        max(before.made, found.made),
        max(before.ready, found.ready),
        min(before.earlier, found.earlier),
        before.complete or complete,
        now.wall,
    )
    waits = not live.replicas or _finishing(observed, live.template)
    return best if waits or best[1:4] != before[1:4] else best._replace(since=before.since)


def _whole(leader: Pod, observed: Observed, live: DeploymentView) -> bool:
    """Its group serves. A leader may be ready before those behind it, who have no probe, have come to run."""
    replica = observed.replica(leader)
    return leader.ready and len(replica) >= live.group_size and all(other.running for other in replica[1:])


def _finishing(observed: Observed, latest: str | None) -> bool:
    """A group finishes its answers, and the one that follows waits for that.

    One of the `latest` template that does not drain is made anew after a crash, of its own or of another of its group.
    """
    leave = (pod for pod in observed.pods if pod.terminating and not pod.lost and observed.own(pod))
    return any(pod.template_hash != latest or pod.draining for pod in leave)


def _moments(observed: Observed) -> Iterator[datetime]:
    """When something was made or became ready, and when we wrote the set last."""
    times = [pod.created for pod in observed.pods] + [pod.start.ready for pod in observed.pods]
    for child, body in observed.children.items():
        if child.kind == GROUP_SET.name:
            times += [_written(entry) for entry in body["metadata"].get("managedFields") or ()]
    yield from (time for time in times if time is not None)


def _written(entry: Body) -> datetime | None:
    ours = entry.get("manager") == labels.FIELD_MANAGER and entry.get("operation") == "Apply"
    return parse_time(entry.get("time")) if ours else None
