"""Models on nodes: looks at what there is, carries the plan out, and tells each service how far its model is."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.cluster import ApiError, Cluster, NotFound, NotLeading, Outdated, Refused, Terminating
from pagefleet_operator.facts.evidence import essentials
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.kinds import CLAIM, DAEMON_SET, NODE, POD, SECRET, VOLUME
from pagefleet_operator.models.downloads import Downloads
from pagefleet_operator.models.node_demand import NodeDemand, Use, Version, parts_on_nodes
from pagefleet_operator.plan.node_cache import (
    Delete,
    Mark,
    NodeModel,
    Step,
    Write,
    leftovers,
    progress,
    steps_for,
    unsettled,
)
from pagefleet_operator.plan.nodes_seen import Bodies, NodesSeen, Pods
from pagefleet_operator.plan.prefetch import Prefetch, Stage, together
from pagefleet_operator.settings import Settings
from pagefleet_operator.status.crash import crash_words
from pagefleet_operator.supplies import Lack, Stays, Supply, of_prefetch, refused

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_CALM_LOOK_S = 15.0
"""Between two looks at nodes, and at everything while nothing is on its way."""
_ASKED = 5
"""Pods of one model that are asked how far they are."""
_OURS = f"{labels.MANAGED_BY}={labels.FIELD_MANAGER},{labels.MODEL}"
_FETCHERS = f"{labels.NAME}={render.NODE_CACHE},{labels.MODEL}"
_KINDS = {kind.name: kind for kind in (DAEMON_SET, VOLUME, CLAIM, SECRET)}
_NO_STORE = (
    "model.cache.mode: Node needs the chart value nodeCache.enabled: true, which an operator of the whole cluster (no "
    "watchNamespaces, no shard) can have; set it, or use model.cache.mode: PVC or None"
)
_NO_SECRETS = (
    "model.secretRef with model.cache.mode: Node needs the chart value readModelSecrets: true, as the operator hands "
    "the credentials on to the download in its own namespace; set it, or use model.cache.mode: PVC or None"
)
_NO_RIGHTS = (
    "model.cache.mode: Node needs rights over nodes and volumes, which the chart gives with nodeCache.enabled: true; "
    "give them, or use model.cache.mode: PVC or None: "
)
_SOON = Prefetch(Stage.FETCHING, "the operator sees to it within seconds")
_BROKEN = "an error of the operator, not of the service, keeps it from looking after the model"
_TRACE = "it tries again; its log has the trace under node_model_broken"

_Problems = dict[str | None, str]
"""What was refused, by the namespace that it is about; None: everybody's."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What the latest turn found; lost with the lead.

    busy: something is on its way, so that the next look comes soon.
    """

    at_s: float
    users: dict[str, Version]
    progress: dict[Use, Prefetch]
    busy: bool = False
    empty: bool = False


class NodeCache:
    """A `Supplier` of models on nodes, and the one that brings them there: one for all services.

    `look_again(key, delay_s)` asks for a pass over a service whose model moved on.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        cache: WatchCache,
        downloads: Downloads,
        look_again: Callable[[ServiceKey, float], None],
    ) -> None:
        self._cluster, self._downloads, self._look_again = cluster, downloads, look_again
        self._store = _store(settings)
        self._reads_secrets = settings.read_model_secrets
        self._turning = asyncio.Lock()
        self._demand = NodeDemand(cache)
        self._nodes: dict[str, Body] = {}
        self._nodes_s: float | None = None
        self._known: _Known | None = None

    def plan(self, service: InferenceService, live: Body | None, *, held_back: bool) -> Supply:
        """How far the service's model is, as of the latest turn."""
        self._demand.hold_back(ServiceKey(service.namespace, service.name), held_back)
        if not (parts := parts_on_nodes(service)):
            return Supply()
        if (lack := self._refusal(service)) is not None:
            return Supply(lack)
        known, called = {} if self._known is None else self._known.progress, service.spec.model.called
        found = {called(part.spec.model): known.get(Use.of(part), _SOON) for part in parts}
        return of_prefetch(together(found), stays=Stays.PLACE)

    async def known(self, service: InferenceService) -> None:
        """Return once it is known how far the service's model is. Raises ApiError."""
        if self._known is None and self._store is not None and parts_on_nodes(service):
            async with self._turning:
                if self._known is None:
                    self._keep(await self._turn(self._store))

    async def run(self, leads: Callable[[], bool]) -> None:
        """Take turns while this replica leads."""
        while True:
            try:
                if not leads():
                    self._known = None
                elif self._store is not None and self._is_due():
                    async with self._turning:
                        self._keep(await self._turn(self._store))
            except NotLeading:
                self._known = None
            except ApiError as error:
                log.warning("node_cache_failed", extra={"error": str(error)})
            except Exception:  # a bug must not end the operator
                log.exception("node_cache_broken")
            await asyncio.sleep(_LOOK_S)

    async def _turn(self, store: render.NodeStore) -> _Known:
        """Look at everything and write what is missing. Raises ApiError when it cannot look, and NotLeading."""
        wanted = self._wanted()
        versions = self._demand.versions(services := [service for users in wanted.values() for service in users])
        try:
            seen = await self._look(store)
        except Refused as error:
            refused = Prefetch(Stage.FAILING, f"{_NO_RIGHTS}{error}")
            return _Known(time.monotonic(), versions, {Use.of(service): refused for service in services})
        leaving = leftovers(wanted.keys(), seen)
        for steps in leaving.values():
            await self._carry_out(steps)
        told: dict[Use, Prefetch] = {}
        busy = unsettled(seen) or bool(leaving)
        for name, users in wanted.items():
            moved, found = await self._see_to(name, users, store, seen)
            busy = busy or moved
            told |= found
            await asyncio.sleep(0)  # the Lease is renewed between two of hundreds of models
        busy = busy or any(found.stage is not Stage.CACHED for found in told.values())
        return _Known(time.monotonic(), versions, told, busy, empty=not (told or leaving))

    async def _see_to(
        self, name: str, users: Sequence[InferenceService], store: render.NodeStore, seen: NodesSeen
    ) -> tuple[bool, dict[Use, Prefetch]]:
        """Write what one model lacks: whether there was anything, and how far the model is for each of its users.

        An error of ours over one model is told to its users and is nobody else's trouble. Raises ApiError.
        """
        try:
            model = render.node_model(users, store)
            if not self._goes_on(model, seen):
                return False, {}
            steps = steps_for(model, seen)
            problems = {**await self._carry_out(steps), **await self._hand_on(model, seen)}
            return bool(steps), self._told(model, replace(seen, nodes=list(self._nodes.values())), problems)
        except ApiError:
            raise
        except Exception as error:
            services = [f"{user.namespace}/{user.name}" for user in users]
            log.exception("node_model_broken", extra={"model": name, "services": services})
            return True, self._broken(users, error)

    def _broken(self, users: Sequence[InferenceService], error: Exception) -> dict[Use, Prefetch]:
        """What is told of a model that an error of ours keeps from being looked after; one that is there stays."""
        failing = Prefetch(Stage.FAILING, f"{_BROKEN}: {crash_words(error)}; {_TRACE}")
        before = {} if self._known is None else self._known.progress
        cached = {use: found for use, found in before.items() if found.stage is Stage.CACHED}
        return {use: cached.get(use, failing) for use in map(Use.of, users)}

    def _goes_on(self, model: NodeModel, seen: NodesSeen) -> bool:
        """A model that is not asked for yet waits for a pass over one of its services: that may want no pods."""
        return seen.daemon_set(model.name) is not None or any(self._demand.decided(user) for user in model.users)

    def _refusal(self, service: InferenceService) -> Lack | None:
        private = service.spec.model.secret_ref is not None
        words = _NO_STORE if self._store is None else _NO_SECRETS if private and not self._reads_secrets else None
        return None if words is None else refused(words)._replace(stays=Stays.MODEL)

    def _is_due(self) -> bool:
        known = self._known
        if known is None or known.users != self._demand.versions(self._wanting()):
            return True
        return known.busy or (not known.empty and time.monotonic() - known.at_s >= _CALM_LOOK_S)

    def _wanting(self) -> list[InferenceService]:
        return [service for service in self._demand.services() if self._refusal(service) is None]

    def _wanted(self) -> dict[str, list[InferenceService]]:
        """The services that want each model, by the model's name."""
        by_name: dict[str, list[InferenceService]] = {}
        for service in sorted(self._wanting(), key=lambda user: (user.namespace, user.name)):
            for part in parts_on_nodes(service):
                by_name.setdefault(render.node_model_name(part), []).append(part)
        return by_name

    async def _look(self, store: render.NodeStore) -> NodesSeen:
        items = self._cluster.items
        if self._nodes_s is None or time.monotonic() - self._nodes_s >= _CALM_LOOK_S:
            self._nodes = {node["metadata"]["name"]: essentials(node) for node in await items(NODE, None)}
            self._nodes_s = time.monotonic()
        volumes = await items(VOLUME, None, marks=_OURS, newest=True)
        places = {str((volume["spec"].get("claimRef") or {}).get("namespace")) for volume in volumes}
        return NodesSeen(
            nodes=list(self._nodes.values()),
            daemon_sets=Bodies(await items(DAEMON_SET, store.namespace, marks=_OURS, newest=True)),
            pods=Pods(await items(POD, store.namespace, marks=_FETCHERS)),
            volumes=Bodies(volumes),
            claims=Bodies(await items(CLAIM, None, marks=_OURS, newest=True)),
            mounted=self._demand.mounted(places),
            readers=self._demand.readers(places),
        )

    async def _hand_on(self, model: NodeModel, seen: NodesSeen) -> _Problems:
        """Copy credentials to the DaemonSet's namespace; what keeps them from there."""
        if model.secret is None:
            return {}
        namespace, meta = model.users[0].namespace, model.daemon_set["metadata"]
        try:
            owner = seen.daemon_set(model.name) or await self._cluster.read(DAEMON_SET, meta["namespace"], model.name)
            source = await self._cluster.read(SECRET, namespace, model.secret)
            copy = await self._cluster.read(SECRET, meta["namespace"], model.name)
        except Refused as error:
            return {namespace: f"the credentials of {model.secret} cannot be handed on: {error}"}
        if source is None:
            return {namespace: f"Secret {namespace}/{model.secret}, which model.secretRef names, does not exist"}
        wanted = render.credentials(source)
        if owner is None or (copy is not None and (copy.get("data") or {}) == wanted):
            return {}
        return await self._carry_out([Write(render.copied_secret(model, owner, wanted))])

    async def _carry_out(self, steps: Sequence[Step]) -> _Problems:
        """Do what can be done. One namespace's refusal, of a quota say, is no other's trouble."""
        problems: _Problems = {}
        for step in steps:
            try:
                with contextlib.suppress(NotFound, Outdated):
                    await self._do(step)
            except (Refused, Terminating) as error:
                log.warning("node_cache_refused", extra={"step": type(step).__name__, "error": str(error)})
                claim = step.manifest if isinstance(step, Write) and step.manifest["kind"] == CLAIM.name else None
                problems.setdefault(None if claim is None else claim["metadata"]["namespace"], str(error))
        return problems

    async def _do(self, step: Step) -> None:
        match step:
            case Write(manifest):
                await self._cluster.apply(manifest, _KINDS[manifest["kind"]])
                log.info("node_cache_applied", extra={"kind": manifest["kind"], "object": manifest["metadata"]["name"]})
            case Delete(kind, live):
                await self._cluster.delete(_KINDS[kind], live)
                log.info("node_cache_removed", extra={"kind": kind, "object": live["metadata"]["name"]})
            case Mark(node, label, value):
                self._nodes[node] = essentials(await self._cluster.mark_node(node, label, value))
                log.info("node_marked", extra={"node": node, "label": label, "value": value})

    def _told(self, model: NodeModel, seen: NodesSeen, problems: _Problems) -> dict[Use, Prefetch]:
        """How far the model is for each of its users."""
        fetching = [pod for pod in seen.pods.of(model.name).values() if not pod.ready][:_ASKED]
        uses = {Use.of(user): user for user in model.users}
        said = {uid: told for use in uses for uid, told in self._downloads.about(use.key, fetching).items()}
        alike = {(use.key.namespace, use.placing): user for use, user in uses.items()}
        far = {place: progress(model, user, seen, said) for place, user in alike.items()}
        found = {use: far[use.key.namespace, use.placing] for use in uses}
        for use, prefetch in found.items():
            problem = problems.get(use.key.namespace) or problems.get(None)
            if problem is not None and prefetch.stage is not Stage.CACHED:
                found[use] = Prefetch(Stage.FAILING, problem)
        return found

    def _keep(self, known: _Known) -> None:
        """Look at the services for which something has changed."""
        before = {} if self._known is None else self._known.progress
        self._known = known
        for use, found in known.progress.items():
            if found != before.get(use):
                self._look_again(use.key, 0)


def _store(settings: Settings) -> render.NodeStore | None:
    flags = settings.node_cache
    return None if flags is None else render.NodeStore(settings.lease_namespace, settings.fetch_image, *flags)
