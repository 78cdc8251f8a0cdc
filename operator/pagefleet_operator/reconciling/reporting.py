"""Writes a service's status, and tells of its turns."""

from collections.abc import Callable

from pagefleet_api.status import Status
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.cluster import Cluster, NotFound
from pagefleet_operator.facts.observed import Now
from pagefleet_operator.news import Ration, turn
from pagefleet_operator.reconciling.execute import Executor
from pagefleet_operator.reconciling.passes import live_status
from pagefleet_operator.status import worth_writing


class Reporter:
    """The one writer of statuses."""

    def __init__(self, cluster: Cluster, cache: WatchCache, executor: Executor) -> None:
        self._cluster, self._cache, self._executor = cluster, cache, executor
        self._rations: dict[ServiceKey, Ration] = {}

    def forget(self, key: ServiceKey) -> None:
        """The service is gone, or another replica acts."""
        self._rations.pop(key, None)

    async def report(self, key: ServiceKey, uid: str, compose: Callable[[Status], Status], now: Now) -> None:
        """Write what `compose` makes of the live status, if that tells more, and the Event of a turn.

        Nothing is written when the service is gone, or is another one of that name. Raises ApiError.
        """
        body = self._cache.service(key)
        if body is None or body["metadata"]["uid"] != uid:
            return
        previous = live_status(body)
        status = compose(previous)
        if not worth_writing(previous, status, now):
            return
        try:
            written = await self._cluster.write_status(key.namespace, key.name, uid, status.wire())
        except NotFound:
            return
        self._cache.put(written["kind"], written)
        news = turn(previous, status)
        if news is not None and self._may_tell(key, now):
            await self._executor.post(key.namespace, key.name, uid, news)

    def _may_tell(self, key: ServiceKey, now: Now) -> bool:
        ration = self._rations.get(key, Ration())
        rest = ration.spent(now.wall)
        self._rations[key] = ration if rest is None else rest
        return rest is not None
