"""Finds out what the fit check needs before a pod runs: a model's config.json and index, the types of GPU on nodes.

The files are read once a model, a few models at a time. A hub that does not answer is left alone for a while, so that
nobody waits in a row for it to time out.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagefleet_api import model_uri
from pagefleet_api.service import CapacityPolicy, InferenceService
from pagefleet_api.sizing.facts import CONFIG_FILE, ModelFacts
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.apiserver.cluster import ApiError, Body
from pagefleet_operator.apiserver.inquiry import Lister
from pagefleet_operator.capacity import on_cpu
from pagefleet_operator.facts.knowledge import GpuNodes, Knowledge, gpu_nodes
from pagefleet_operator.kinds import NODE, SECRET, Kind
from pagefleet_operator.models.model_files import FilesUnread, ModelKey, read_files
from pagefleet_operator.remembered import Remembered

log = logging.getLogger(__name__)

_READ_HERE = ("hf",)
"""Schemes whose addresses no user can choose, and that are read without credentials: a user's http:// may name any host
that the operator reaches, and a bucket would be opened with the operator's own cloud identity. Of those a model that is
one file, as .gguf, is not read: it has its weights and its sizes in one."""
_UNOPENED = (
    "the operator may not read the Secret of model.secretRef (the chart's readModelSecrets lets it); known once a pod "
    "is ready"
)
_TOKEN, _ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
_NODES_FRESH_S = 60.0
_AT_A_TIME = 4
"""Each is a process of some 50 MB beside the operator."""
_FAILED_FIRST_S, _FAILED_CAP_S = 10.0, 1800.0
_REST_FIRST_S, _REST_CAP_S, _REST_ASKED_CAP_S = 5.0, 60.0, 600.0
_BUSY_LIMIT_S = 60.0
"""So long a model is asked for again while the hub is only busy; then its pods need not wait for the check."""
_DOUBLINGS = 10
_REMEMBERED = 1000


class Asker(Lister, Protocol):
    """Reads single objects too; `Cluster` is one."""

    async def read(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """One object, or None when there is none. Raises ApiError."""


Reader = Callable[[ModelKey, Mapping[str, str]], Awaitable[ModelFacts]]
"""Reads a model's facts with these credentials. Raises FilesUnread."""


@dataclass(frozen=True, slots=True)
class _Tried:
    facts: ModelFacts | None
    unknown: str
    failures: int
    again_s: float


class _Rest(NamedTuple):
    """The hub, which all models that are read here come from, is left alone until `until_s`."""

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
    """Finds `Knowledge`. `everywhere`: this operator may look at nodes. `secrets`: it may read Secrets.

    `changed`: more is known of a service now.
    """

    def __init__(
        self,
        asker: Asker,
        changed: Callable[[ServiceKey], None],
        *,
        everywhere: bool,
        secrets: bool = False,
        reader: Reader | None = None,
    ) -> None:
        self._asker, self._changed, self._everywhere, self._secrets = asker, changed, everywhere, secrets
        self._reader = reader or read_files
        self._tried: dict[ModelKey, _Tried] = Remembered(_REMEMBERED)
        self._reading: dict[ModelKey, set[ServiceKey]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_a_time = asyncio.Semaphore(_AT_A_TIME)
        self._rest = _Rest()
        self._nodes: dict[str, tuple[tuple[GpuNodes, ...] | None, float]] = {}

    async def about(self, service: InferenceService) -> Knowledge:
        """What is known now. The files are read beside, and `changed` says when they were."""
        spec = service.spec
        if spec.capacity_policy is CapacityPolicy.IGNORE:
            return Knowledge()
        if not _is_read_here(model_uri.parse(spec.model.uri)):
            return Knowledge(unknown=f"{spec.model.uri} is read by the pod alone; known once one is ready")
        secret = spec.model.secret_ref
        if secret is not None and not self._secrets:
            return Knowledge(unknown=_UNOPENED)
        opened_by = None if secret is None else (service.namespace, secret.name)
        model = ModelKey(spec.model.uri, spec.model.revision, opened_by)
        tried = self._about_model(model, ServiceKey(service.namespace, service.name))
        if tried is None:
            return Knowledge(unknown=f"{CONFIG_FILE} of {spec.model.uri} is being read", reading=True)
        gpus = None if tried.facts is None or on_cpu(spec) else await self._gpus(spec.resources.gpu.resource_name)
        return Knowledge(facts=tried.facts, unknown=tried.unknown, gpus=gpus)

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
        """Tries, until something else comes of it than a hub that is busy, or it was so for too long."""
        give_up_s = time.monotonic() + _BUSY_LIMIT_S
        words = f"{model.uri} is not asked for yet: the hub is busy"
        while True:
            async with self._at_a_time:
                if time.monotonic() >= self._rest.until_s:
                    try:
                        return await self._try(model, failures)
                    except FilesUnread as busy:
                        words = str(busy)
            if self._rest.until_s > give_up_s:
                return _failed(words, failures, least_s=self._rest.until_s)
            await asyncio.sleep(max(self._rest.until_s - time.monotonic(), 0.0))

    async def _try(self, model: ModelKey, failures: int) -> _Tried:
        """Raises FilesUnread when the hub is busy."""
        try:
            facts = await self._reader(model, await self._credentials(model))
        except FilesUnread as error:
            log.warning("model_files_unread", extra={"model": model.uri, "error": str(error)})
            self._rest = self._rest.after(error, time.monotonic())
            if error.busy:
                raise
            return _failed(str(error), failures)
        except Exception as error:  # else nobody would ever be told, and what waits for it would wait for ever
            log.exception("model_files_crashed", extra={"model": model.uri})
            return _failed(f"{model.uri}: its files cannot be read: {error!r}", failures)
        self._rest = self._rest.after(None, time.monotonic())
        return _Tried(facts, "", 0, 0.0)

    async def _credentials(self, model: ModelKey) -> dict[str, str]:
        """The hub's token, and nothing else that the Secret has: an endpoint in it would be the user's choice."""
        if model.secret is None:
            return {}
        namespace, name = model.secret
        try:
            found = await self._asker.read(SECRET, namespace, name)
        except ApiError as error:
            raise FilesUnread(f"model.secretRef {name}: {error}") from error
        data = (found or {}).get("data") or {}
        if _TOKEN not in data or _ENDPOINT in data:
            raise FilesUnread(
                f"model.secretRef {name}: a Secret with {_TOKEN} and without {_ENDPOINT} is read here alone"
            )
        return {_TOKEN: base64.b64decode(data[_TOKEN]).decode(errors="replace").strip()}

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


def _failed(words: str, failures: int, least_s: float = 0.0) -> _Tried:
    """Once more than `failures` times; tried again later each time, and not before `least_s`."""
    again_s = time.monotonic() + min(_FAILED_FIRST_S * 2.0**failures, _FAILED_CAP_S)
    return _Tried(None, words, min(failures + 1, _DOUBLINGS), max(again_s, least_s))


def _is_read_here(uri: model_uri.ModelUri) -> bool:
    return uri.scheme in _READ_HERE and uri.file is None
