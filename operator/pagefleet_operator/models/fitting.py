"""Finds out what the fit check needs before a pod runs: a model's config.json and index, the types of GPU on nodes.

The files are read once a model, a few models at a time. Whoever does not answer is left alone for a while, so that
nobody waits in a row for it to time out.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagefleet_api import adapters
from pagefleet_api.model_source import ModelSource
from pagefleet_api.model_uri import parse
from pagefleet_api.service import CapacityPolicy, InferenceService
from pagefleet_api.sizing.adapters import AdapterFacts
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.apiserver.cluster import ApiError, Body
from pagefleet_operator.apiserver.inquiry import Lister
from pagefleet_operator.capacity import on_cpu
from pagefleet_operator.facts.knowledge import GpuNodes, Knowledge, gpu_nodes
from pagefleet_operator.kinds import NODE, SECRET, Kind
from pagefleet_operator.models.access import Access, SecretUnusable, asked
from pagefleet_operator.models.model_files import Facts, FilesUnread, ModelKey, read_any
from pagefleet_operator.remembered import Remembered

log = logging.getLogger(__name__)

_NO_MORE = Access()
_NODES_FRESH_S = 60.0
_AT_A_TIME = 4
"""Each is a process of some 50 MB beside the operator."""
_FAILED_FIRST_S, _FAILED_CAP_S = 10.0, 1800.0
_REST_FIRST_S, _REST_CAP_S, _REST_ASKED_CAP_S = 5.0, 60.0, 600.0
_BUSY_LIMIT_S = 60.0
"""So long a model is asked for again while its source is only busy; then its pods need not wait for the check."""
_DOUBLINGS = 10
_MODEL, _DRAFT = "", "/draft"
"""Among adapters' names, of which none is empty or has a slash."""
_REMEMBERED = 1000
_FILES_REMEMBERED = _REMEMBERED * (1 + adapters.MOST)
"""As many services with all adapters that they may have: a service whose files were forgotten would read them anew in
each pass, and its condition would come and go."""


class Asker(Lister, Protocol):
    """Reads single objects too; `Cluster` is one."""

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """One object, or None when there is none. Raises ApiError."""


Reader = Callable[[ModelKey, Mapping[str, str]], Awaitable[Facts]]
"""Reads a model's or an adapter's facts with these credentials. Raises FilesUnread."""


@dataclass(frozen=True, slots=True)
class _Tried:
    facts: Facts | None
    unknown: str
    failures: int
    again_s: float


class _Rest(NamedTuple):
    """The hub, one bucket or one web server is left alone until `until_s`."""

    until_s: float = 0.0
    failures: int = 0
    """In a row."""

    def after(self, error: FilesUnread | None, now_s: float) -> "_Rest":
        """Twice as long each time, or for as long as it asks. Any answer but that it is busy ends the row.

        What comes during a rest answers who asked before it began: it makes the rest longer at most.
        """
        resting = now_s < self.until_s
        if error is None or not error.busy:
            return self if resting else _Rest()
        failures = self.failures if resting else min(self.failures + 1, _DOUBLINGS)
        own_s = min(_REST_FIRST_S * 2.0 ** (failures - 1), _REST_CAP_S)
        asked_s = own_s if error.after_s is None else min(max(error.after_s, _REST_FIRST_S), _REST_ASKED_CAP_S)
        return _Rest(max(self.until_s, now_s + asked_s), failures)


class Fitting:
    """Finds `Knowledge`. `everywhere`: this operator may look at nodes. `access`: what it reads itself.

    `changed`: more is known of a service now.
    """

    def __init__(
        self,
        asker: Asker,
        changed: Callable[[ServiceKey], None],
        *,
        everywhere: bool,
        access: Access = _NO_MORE,
        reader: Reader | None = None,
    ) -> None:
        self._asker, self._changed, self._everywhere, self._access = asker, changed, everywhere, access
        self._reader = reader or read_any
        self._tried: dict[ModelKey, _Tried] = Remembered(_FILES_REMEMBERED)
        self._reading: dict[ModelKey, set[ServiceKey]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_a_time = asyncio.Semaphore(_AT_A_TIME)
        self._rests: dict[tuple[str, str], _Rest] = Remembered(_REMEMBERED)
        self._nodes: dict[str, tuple[tuple[GpuNodes, ...] | None, float]] = {}

    async def about(self, service: InferenceService) -> Knowledge:
        """What is known now. The files are read beside, and `changed` says when they were."""
        spec = service.spec
        if spec.capacity_policy is CapacityPolicy.IGNORE:
            return Knowledge()
        for source in spec.model.sources[:: len(spec.model.adapters) + 1]:  # the model, and the draft behind adapters
            if (refusal := self._access.refusal(source)) is not None:
                return Knowledge(unknown=refusal)
        key, keys, tried = ServiceKey(service.namespace, service.name), self._keys(service), dict[str, _Tried]()
        for adapters_turn in (False, True):  # later, so that nobody's model waits behind all adapters of another one
            now = {name: model for name, model in keys.items() if model.adapter is adapters_turn}
            found = {name: self._about_model(model, key) for name, model in now.items()}
            tried |= {name: known for name, known in found.items() if known is not None}
            for model in (now[name] for name in found if name not in tried):
                return Knowledge(unknown=f"{model.file} of {model.uri} is being read", reading=True)
        ranks = {name: each.facts.rank for name, each in tried.items() if isinstance(each.facts, AdapterFacts)}
        models = {name: tried[name] for name in (_MODEL, _DRAFT) if name in tried}
        for each in models.values():
            if each.facts is None:
                return Knowledge(ranks=ranks, unknown=each.unknown)
        found_facts = {name: each.facts for name, each in models.items() if isinstance(each.facts, ModelFacts)}
        gpus = None if on_cpu(spec) else await self._gpus(spec.resources.gpu.resource_name)
        facts, draft = found_facts[_MODEL], found_facts.get(_DRAFT)
        return Knowledge(facts=facts, ranks=ranks, draft=draft, unknown="", gpus=gpus)

    def _keys(self, service: InferenceService) -> dict[str, ModelKey]:
        """What is to be read: the model, its draft, and by their names the adapters of which nobody says the rank."""
        model, *sources = service.spec.model.sources
        models = {_MODEL: model} if service.spec.model.draft is None else {_MODEL: model, _DRAFT: sources.pop()}
        named = zip(service.spec.model.adapters, sources, strict=True)
        unsaid = {adapter.name: source for adapter, source in named if adapter.rank is None}
        readable = {name: source for name, source in unsaid.items() if self._access.refusal(source) is None}
        return {name: _key(service, source, name) for name, source in {**models, **readable}.items()}

    def _about_model(self, model: ModelKey, asks: ServiceKey) -> _Tried | None:
        """What became of reading it; None while that goes on for the first time."""
        tried = self._tried.get(model)
        due = tried is None or (tried.facts is None and time.monotonic() >= tried.again_s)
        if model in self._reading:
            self._reading[model].add(asks)
        elif due:
            self._reading[model] = {asks}
            task = asyncio.create_task(self._read(model))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tried

    async def _read(self, model: ModelKey) -> None:
        before = self._tried.get(model)
        tried = await self._turns(model, 0 if before is None else before.failures)
        self._tried[model] = tried
        for key in self._reading.pop(model):
            self._changed(key)

    async def _turns(self, model: ModelKey, failures: int) -> _Tried:
        """Tries, until something else comes of it than a source that is busy, or it was so for too long."""
        give_up_s, source = time.monotonic() + _BUSY_LIMIT_S, _source(model)
        words = f"{model.uri} is not asked for yet: {source[0]} is busy"
        while True:
            async with self._at_a_time:
                if time.monotonic() >= self._rest(source).until_s:
                    try:
                        return await self._try(model, failures)
                    except FilesUnread as busy:
                        words = str(busy)
            until_s = self._rest(source).until_s
            if until_s > give_up_s:
                return _failed(words, failures, least_s=until_s)
            await asyncio.sleep(max(until_s - time.monotonic(), 0.0))

    def _rest(self, source: tuple[str, str]) -> _Rest:
        return self._rests.get(source, _Rest())

    def _answered(self, model: ModelKey, error: FilesUnread | None) -> None:
        source = _source(model)
        self._rests[source] = self._rest(source).after(error, time.monotonic())

    async def _try(self, model: ModelKey, failures: int) -> _Tried:
        """Raises FilesUnread when its source is busy."""
        try:
            facts = await self._reader(model, await self._credentials(model))
        except FilesUnread as error:
            log.warning("model_files_unread", extra={"model": model.uri, "error": str(error)})
            self._answered(model, error)
            if error.busy:
                raise
            return _failed(str(error), failures)
        except Exception as error:  # else nobody would ever be told, and what waits for it would wait for ever
            log.exception("model_files_crashed", extra={"model": model.uri})
            return _failed(f"{model.uri}: its files cannot be read: {error!r}", failures)
        self._answered(model, None)
        return _Tried(facts, "", 0, 0.0)

    async def _credentials(self, model: ModelKey) -> dict[str, str]:
        """What of its Secret opens it, and nothing else that the Secret has."""
        if model.secret is None:
            return {}
        namespace, name = model.secret
        try:
            found = await self._asker.read(SECRET, namespace, name)
        except ApiError as error:
            raise FilesUnread(f"model.secretRef {name}: {error}") from error
        data = (found or {}).get("data") or {}
        values = {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
        try:
            return self._access.environment(parse(model.uri), values)
        except SecretUnusable as error:
            raise FilesUnread(f"model.secretRef {name}: {error}") from None

    async def _gpus(self, resource: str) -> tuple[GpuNodes, ...] | None:
        """Types on the nodes, as of the latest minute; None where they cannot be told."""
        if not self._everywhere:
            return None
        known = self._nodes.get(resource)
        if known is None or time.monotonic() >= known[1]:
            try:
                found = gpu_nodes(await self._asker.items(NODE, None), resource)
            except ApiError as error:
                log.warning("gpu_types_unknown", extra={"resource": resource, "error": str(error)})
                found = None
            now_s = time.monotonic()  # users choose the names: those that nobody asks about any more must go
            self._nodes = {name: nodes for name, nodes in self._nodes.items() if now_s < nodes[1]}
            known = self._nodes[resource] = (found, now_s + _NODES_FRESH_S)
        return known[0]


def _key(service: InferenceService, source: ModelSource, name: str) -> ModelKey:
    secret = source.secret_ref
    opened_by = None if secret is None else (service.namespace, secret.name)
    return ModelKey(source.uri, source.revision, opened_by, adapter=name not in (_MODEL, _DRAFT))


def _source(model: ModelKey) -> tuple[str, str]:
    """Who is asked, and with whose Secret where that may lead elsewhere: a bucket's region or account is in it."""
    uri, secret = parse(model.uri), model.secret
    return asked(uri), "" if secret is None or uri.scheme == "hf" else secret[0]


def _failed(words: str, failures: int, least_s: float = 0.0) -> _Tried:
    """Once more than `failures` times; tried again later each time, and not before `least_s`."""
    again_s = time.monotonic() + min(_FAILED_FIRST_S * 2.0**failures, _FAILED_CAP_S)
    return _Tried(None, words, min(failures + 1, _DOUBLINGS), max(again_s, least_s))
