"""Whether the cluster has what groups of pods need."""

from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_operator.apiserver.cache import WatchCache
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.kinds import GROUP_SET
from pagefleet_operator.supplies import Lack, Stays, Supply


class Grouping:
    """Plans from the watch cache: a `Supplier` of LeaderWorkerSets, which a person installs."""

    def __init__(self, cache: WatchCache) -> None:
        self._cache = cache

    def plan(self, service: InferenceService, live: Body | None, *, held_back: bool) -> Supply:
        """What the service's pods wait for, if they wait; pods of an earlier spec go on meanwhile."""
        lack = self._cache.lack(GROUP_SET.name, service.namespace)
        if not service.spec.in_groups or lack is None:
            return Supply()
        asked = f"engine.parallelism.pipeline {service.spec.engine.parallelism.pipeline}"
        words = f"{asked} needs a LeaderWorkerSet, and {lack}, or set engine.parallelism.pipeline: 1"
        ready = Verdict(False, Reason.LEADER_WORKER_SET_MISSING, f"no pod is made: {words}")
        stalled = Verdict(True, Reason.LEADER_WORKER_SET_MISSING, words)
        return Supply(Lack(Stays.ALL, ready, stalled=stalled, urgent=True))
