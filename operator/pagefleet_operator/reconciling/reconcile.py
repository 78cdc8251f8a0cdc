"""One pass over one service, in five verbs: parse, observe, plan, execute, report."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pagefleet_api.explanation import Explanation
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_api.status import Status
from pagefleet_operator import render
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.inquiry import Inquiry
from pagefleet_operator.autoscaling import Outcome
from pagefleet_operator.capacity import Judgement
from pagefleet_operator.engines.scraper import Scraper
from pagefleet_operator.facts.observed import Body, Now, Observed
from pagefleet_operator.metrics import Metrics, Operator
from pagefleet_operator.models.access import Access
from pagefleet_operator.models.downloads import Downloads
from pagefleet_operator.models.fitting import Fitting
from pagefleet_operator.models.image_nodes import ImageNodes
from pagefleet_operator.models.node_cache import NodeCache
from pagefleet_operator.models.prefetching import Prefetching
from pagefleet_operator.news import News
from pagefleet_operator.plan import groups
from pagefleet_operator.plan.convergence import plan_children, without_pods
from pagefleet_operator.plan.headway import follow
from pagefleet_operator.plan.replicas import plan_replicas
from pagefleet_operator.plan.trial import baseline, on_trial
from pagefleet_operator.reconciling import workloads
from pagefleet_operator.reconciling.basis import Basis, made_from
from pagefleet_operator.reconciling.execute import Executor, Hindrances, Steps
from pagefleet_operator.reconciling.grouping import Grouping
from pagefleet_operator.reconciling.observing import Observer
from pagefleet_operator.reconciling.passes import (
    Done,
    Pass,
    Recollection,
    judged,
    live_status,
    measure,
    same_answer,
    status_of,
    time_decision,
)
from pagefleet_operator.reconciling.reporting import Reporter
from pagefleet_operator.reconciling.rollouts import Images, choose
from pagefleet_operator.reconciling.scaling import sample_max_age_s, scale
from pagefleet_operator.reconciling.supplying import Supplier, Supplying
from pagefleet_operator.settings import Settings
from pagefleet_operator.status import Invalid, counted_status, crash_words, crashed_status, invalid_status
from pagefleet_operator.supplies import of_judgement, of_nodes

log = logging.getLogger(__name__)

_ROLLOUT_LOOK_S = 10.0
_CREATING_LOOK_S = 2.0
_CREATING_SOON = timedelta(seconds=20)
"""Of a pod or container that is not made this long, the next look may wait: no change tells what hinders it."""
_PREDECESSOR_LOOK_S = 2.0
_ROUNDS_MISSED = 1.5
"""A round of samples brings the next pass; without one (no pod answers yet) it comes so many intervals later."""


class Reconciler:
    """Runs passes. `look_again(key, delay_s)` asks for a further pass."""

    def __init__(
        self,
        settings: Settings,
        cache: WatchCache,
        cluster: api.Cluster,
        scraper: Scraper,
        metrics: Metrics,
        look_again: Callable[[ServiceKey, float], None],
    ) -> None:
        self._settings, self._cache, self._cluster = settings, cache, cluster
        self._scraper, self._metrics, self._look_again = scraper, metrics, look_again
        self._executor = Executor(cluster, scraper, cache, metrics)
        downloads = Downloads(scraper.progress, look_again)
        self.node_cache = NodeCache(settings, cluster, cache, downloads, look_again)
        prefetching = Prefetching(cache, settings.fetch_image, downloads)
        self._suppliers: Sequence[Supplier] = (prefetching, self.node_cache, Grouping(cache))
        self._supplying = Supplying(cluster, cache)
        self._reporter = Reporter(cluster, cache, self._executor)
        self._images = Images(settings.engine_image, settings.fetch_image)
        everywhere, access = not settings.namespaces, Access(settings.model_origins, settings.read_model_secrets)
        fitting = Fitting(cluster, lambda key: look_again(key, 0), everywhere=everywhere, access=access)
        images = ImageNodes(cluster, everywhere=everywhere)
        self._observer = Observer(cache, scraper, Inquiry(cluster, everywhere=everywhere), fitting, images)
        self._kept: dict[ServiceKey, Recollection] = {}
        self.unserved: Callable[[], str | None] = lambda: None
        """Why others' autoscalers cannot read the load here; None where they can, or are not meant to."""

    async def converge(self, key: ServiceKey) -> None:
        """Bring one service closer to what its object says. Raises ApiError when it should be tried again."""
        body = self._cache.service(key)
        if body is None or body["metadata"].get("deletionTimestamp") is not None:
            self.forget(key)
            return
        service, invalid = self._parse(key, body)
        if service is not None:
            await self.node_cache.known(service)
        observed = None if service is None else await self._observer.look(service)
        now = Now(datetime.now(UTC), time.monotonic())
        if service is not None and observed is not None:
            decided = self._plan(service, observed, now)
            done = await self._execute(key, decided)
            await self._report(key, done, invalid, now)
            done.check()
        elif invalid is not None:
            await self._report_invalid(key, body["metadata"]["uid"], invalid, now)

    async def report_crash(self, key: ServiceKey, error: BaseException) -> None:
        """Say on the service that a pass over it ended in an error of our own. Raises ApiError."""
        body, words, now = self._cache.service(key), crash_words(error), Now(datetime.now(UTC), time.monotonic())
        if body is not None:
            meta = body["metadata"]
            generation = meta.get("generation", 1)
            await self._reporter.report(
                key, meta["uid"], lambda before: crashed_status(words, generation, before, now), now
            )

    def forget(self, key: ServiceKey) -> None:
        """The service is gone or being deleted: its children go with it."""
        self._scraper.forget(key)
        self._metrics.forget(*key.series)
        self._reporter.forget(key)
        self._kept.pop(key, None)

    def forget_all(self) -> None:
        """Another replica acts from now on; what is remembered here would be out of date later."""
        for key in list(self._kept):
            self.forget(key)

    def explanation(self, namespace: str, name: str) -> Explanation | None:
        """The latest decisions about a service, and what comes next; None when it is not known."""
        kept = self._kept.get(ServiceKey(namespace, name))
        return None if kept is None else kept.explanation()

    def _parse(self, key: ServiceKey, body: Body) -> tuple[InferenceService | None, Invalid | None]:
        """The service, and why it cannot be read if it cannot.

        Then it goes on as it could be read last: its pods serve, and its drains must end.
        """
        kept = self._kept.get(key)
        if kept is not None and kept.service.uid != body["metadata"]["uid"]:
            self.forget(key)
            kept = None
        try:
            return InferenceService.parse(body), None
        except InvalidService as error:
            log.info("service_invalid", extra={"service": str(key), "error": str(error)})
            invalid = Invalid(str(error), body["metadata"].get("generation", 1))
            return None if kept is None else kept.service, invalid

    def _plan(self, service: InferenceService, observed: Observed, now: Now) -> Pass:
        key = ServiceKey(service.namespace, service.name)
        kept = self._recall(key, service)
        outcome = scale(key, self._kept, observed, live_status(self._cache.service(key)), now)
        wanted = outcome.desired if outcome is not None and outcome.acts else service.spec.replicas
        judgement = judged(service, observed, self._cache.service(key))
        replicas = plan_replicas(
            wanted,
            observed,
            now,
            drain_timeout_s=service.spec.drain.timeout_seconds,
            sample_max_age_s=sample_max_age_s(service),
        )
        kept.start = baseline(kept.start, observed) if on_trial(observed) else {}
        basis = self._basis(service, observed, judgement)
        rollout = choose(basis.service, observed, wanted, replicas, now, images=self._images, start=kept.start)
        kept.headway = follow(kept.headway, observed, wanted, now)
        choices = replace(
            rollout.choices,
            owner=self._settings.owner,
            replicas=basis.pods(rollout.choices.replicas),
            complete=kept.headway and kept.headway.completed,
        )
        children = plan_children(render.manifests(basis.service, choices), observed.children)
        children = workloads.keeping_predecessor(children, basis.service, observed, rollout.handover)
        children = without_pods(children) if basis.untouched else children
        self._remember(key, kept, outcome, wanted)
        late = kept.headway and kept.headway.overdue(service.spec.rollout.progress_deadline_seconds, now)
        steps = Steps(service, observed, replicas, children)
        return Pass(steps, wanted, outcome, rollout.course, judgement, basis, kept.starts, late)

    def _basis(self, service: InferenceService, observed: Observed, judgement: Judgement) -> Basis:
        live, held_back = workloads.live(service, observed.children), judgement.holds_back
        found = [supplier.plan(service, live, held_back=held_back) for supplier in self._suppliers]
        return made_from(service, live, (of_judgement(judgement), of_nodes(observed.knowledge), *found))

    def _recall(self, key: ServiceKey, service: InferenceService) -> Recollection:
        if key not in self._kept:
            self._kept[key] = Recollection(service)
            self._metrics.begin(*key.series)
        self._kept[key].service = service
        return self._kept[key]

    def _remember(self, key: ServiceKey, kept: Recollection, outcome: Outcome | None, wanted: int) -> None:
        kept.memory = outcome.memory if outcome is not None else None
        if kept.wanted is not None and kept.wanted != wanted:
            direction = "up" if wanted > kept.wanted else "down"
            driver = "autoscaler" if outcome is not None and outcome.acts else "spec"
            self._metrics.add(Operator.SCALE_EVENTS, *key.series, direction, driver)
        kept.wanted = wanted
        if outcome is None:
            return
        if outcome.event is not None:
            kept.unposted.append(outcome.event)
        if kept.trail and same_answer(kept.trail[-1], outcome.decision):
            kept.trail.pop()
        kept.trail.append(outcome.decision)

    async def _execute(self, key: ServiceKey, decided: Pass) -> Done:
        self._sample(key, decided)
        try:
            await self._supplying.carry_out(decided.steps.service, decided.basis.writes)
            hindrances = await self._executor.execute(decided.steps)
        except api.Refused as error:
            log.warning("write_refused", extra={"service": str(key), "error": str(error)})
            return Done(decided, Hindrances(), error)
        if hindrances.waits:
            self._look_again(key, _PREDECESSOR_LOOK_S)
        time_decision(self._metrics, decided)
        await self._post(key, decided.steps.service, () if hindrances.conflicts else decided.course.news)
        return Done(decided, hindrances)

    async def _post(self, key: ServiceKey, service: InferenceService, done: Sequence[News]) -> None:
        """What was decided, in the order of its making, and `done`: what counts only now that it is written."""
        kept = self._kept.get(key)
        unposted = kept.unposted if kept is not None else []
        unposted += done
        while unposted:
            await self._executor.post(service.namespace, service.name, service.uid, unposted.pop(0))

    def _sample(self, key: ServiceKey, decided: Pass) -> None:
        """How often to ask the engines, and when to look again without any news."""
        timings, observed, outcome = self._settings.timings, decided.steps.observed, decided.outcome
        draining = decided.steps.replicas.draining > 0
        unready = any(pod.active and not pod.ready for pod in observed.pods)
        trial = decided.course.trial is not None and decided.course.trial.under_way
        busy = draining or unready or trial or (outcome is not None and outcome.watch_closely)
        calm_s = timings.scrape_calm_s if decided.followed else timings.scrape_idle_s
        interval_s = timings.scrape_busy_s if busy else calm_s
        matters = draining or trial or decided.followed or observed.silent or decided.starts.asks
        self._scraper.watch(
            key, observed.pods, interval_s=interval_s, matters=matters, latencies=trial or decided.latencies
        )
        if matters:
            self._look_again(key, interval_s * _ROUNDS_MISSED)
        kept, now = self._kept[key], datetime.now(UTC)
        kept.lacking = (kept.lacking or now) if groups.lacking(observed) else None
        unknown = observed.knowledge.mounts_image is None
        if unknown or (not matters and (unready or observed.rollout_in_progress or kept.lacking)):
            self._look_again(key, _ROLLOUT_LOOK_S)
        creating = [pod.creating for pod in (*observed.pods, *observed.workers)]
        creating += [kept.lacking] if observed.evidence.refused is None else []
        if any(since is not None and now - since < _CREATING_SOON for since in creating):
            self._look_again(key, _CREATING_LOOK_S)

    async def _report(self, key: ServiceKey, done: Done, invalid: Invalid | None, now: Now) -> None:
        """What is observed now counts, with our own writes in it: before them it was about another generation."""
        decided, service = done.decided, done.decided.steps.service
        observed = replace(self._observer.glance(service), evidence=decided.steps.observed.evidence)
        measure(self._metrics, key.series, decided, observed)

        def told(before: Status) -> Status:
            seen = status_of(done, observed, before, now, self.unserved())
            return seen if invalid is None else invalid_status(invalid, seen, before, now)

        await self._reporter.report(key, service.uid, told, now)

    async def _report_invalid(self, key: ServiceKey, uid: str, invalid: Invalid, now: Now) -> None:
        """Of a service that no pass can be made for, as what its spec was before is not known."""
        pods = self._cache.pods(key)
        await self._reporter.report(
            key, uid, lambda before: invalid_status(invalid, counted_status(pods, before, now), before, now), now
        )
