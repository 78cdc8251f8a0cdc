"""What one pass over a service sees: from the watch cache and the scraper, and asked for where pods are in trouble."""

from dataclasses import replace
from datetime import UTC, datetime

from pagefleet_api.service import InferenceService
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.inquiry import Inquiry
from pagefleet_operator.engines.scraper import Scraper
from pagefleet_operator.facts.observed import Observed
from pagefleet_operator.models.fitting import Fitting
from pagefleet_operator.models.image_nodes import ImageNodes
from pagefleet_operator.reconciling import workloads


class Observer:
    """Makes `Observed`."""

    def __init__(
        self, cache: WatchCache, scraper: Scraper, inquiry: Inquiry, fitting: Fitting, images: ImageNodes
    ) -> None:
        self._cache, self._scraper = cache, scraper
        self._inquiry, self._fitting, self._images = inquiry, fitting, images

    async def look(self, service: InferenceService) -> Observed:
        """What is there, with what can be found out about pods in trouble."""
        observed = await self._sampled(service)
        found = await self._inquiry.about(service.namespace, observed, datetime.now(UTC))
        known = await self._fitting.about(service)
        mounts = await self._images.mount(service, workloads.live(service, observed.children))
        placeable = await self._images.hold(service) if workloads.succeeds(service, observed.children) else None
        return replace(observed, evidence=found, knowledge=replace(known, mounts_image=mounts, placeable=placeable))

    def glance(self, service: InferenceService) -> Observed:
        """What the cache and the scraper know now."""
        key = ServiceKey(service.namespace, service.name)
        children = self._cache.children(key)
        pods = self._cache.pods(key)
        return Observed(
            deployment=workloads.view(service, children, pods),
            pods=pods,
            samples=self._scraper.samples(key),
            latencies=self._scraper.latencies(key),
            generations=self._cache.generations(key),
            children=children,
            grouped=workloads.grouped(service, children),
            workers=self._cache.workers(key),
        )

    async def _sampled(self, service: InferenceService) -> Observed:
        """What is there; with samples of this moment where a fixed number goes down, as they say who leaves.

        Fixed services are sampled rarely, and by then the idlest pod may be the busiest one.
        """
        observed = self.glance(service)
        serving = sum(pod.active and pod.serving for pod in observed.pods)
        if service.spec.decides or serving <= service.spec.replicas or observed.rollout_in_progress:
            return observed
        await self._scraper.look(ServiceKey(service.namespace, service.name))
        return self.glance(service)
