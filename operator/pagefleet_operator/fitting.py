"""Finds out what the fit check needs before a pod runs: a model's config.json and index, the types of GPU on nodes.

The files are read by the fetcher in a process of its own, once a model: its libraries and a user's credentials stay out
of this one.
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pagefleet_api import model_uri
from pagefleet_api.service import CapacityPolicy, InferenceService
from pagefleet_api.sizing.facts import CONFIG_FILE, INDEX_FILE, ModelFacts
from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_operator.cache import ServiceKey
from pagefleet_operator.capacity import on_cpu
from pagefleet_operator.cluster import ApiError, Body
from pagefleet_operator.inquiry import Lister
from pagefleet_operator.kinds import NODE, SECRET, Kind
from pagefleet_operator.knowledge import GpuNodes, Knowledge, gpu_nodes

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
_READ_LIMIT_S = 60.0
_NODES_FRESH_S = 60.0
_FAILED_FIRST_S, _FAILED_CAP_S = 30.0, 1800.0
_REMEMBERED = 1000


class FilesUnread(Exception):
    """A model's files could not be read; the text is the fetcher's, with the way out."""


class ModelKey(NamedTuple):
    """One version of a model. `secret` opens it (namespace and name), or everybody may read it."""

    uri: str
    revision: str | None = None
    secret: tuple[str, str] | None = None


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
        self._tried: dict[ModelKey, _Tried] = {}
        self._reading: dict[ModelKey, set[ServiceKey]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Semaphore(1)
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
        failures = 1 if before is None else before.failures + 1
        again_s = time.monotonic() + min(_FAILED_FIRST_S * 2 ** (failures - 1), _FAILED_CAP_S)
        try:
            async with self._one_at_a_time:
                facts = await self._reader(model, await self._credentials(model))
            tried = _Tried(facts, "", 0, 0.0)
        except FilesUnread as error:
            log.warning("model_files_unread", extra={"model": model.uri, "error": str(error)})
            tried = _Tried(None, str(error), failures, again_s)
        except Exception as error:  # else nobody would ever be told, and what waits for it would wait for ever
            log.exception("model_files_crashed", extra={"model": model.uri})
            tried = _Tried(None, f"{model.uri}: its files cannot be read: {error!r}", failures, again_s)
        if len(self._tried) >= _REMEMBERED:
            self._tried.pop(next(iter(self._tried)))
        self._tried[model] = tried
        for key in self._reading.pop(model):
            self._changed(key)

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


def _is_read_here(uri: model_uri.ModelUri) -> bool:
    return uri.scheme in _READ_HERE and uri.file is None


async def read_files(model: ModelKey, credentials: Mapping[str, str]) -> ModelFacts:
    """The model's facts by the fetcher. Raises FilesUnread."""
    work = Path(tempfile.mkdtemp(prefix="pagefleet-facts-"))
    try:
        await _fetch(model, work / "model", credentials)
        index = work / "model" / INDEX_FILE
        return ModelFacts.read(_json(work / "model" / CONFIG_FILE), index=_json(index) if index.exists() else None)
    except ConfigUnusable as error:
        raise FilesUnread(f"{model.uri}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


async def _fetch(model: ModelKey, into: Path, credentials: Mapping[str, str]) -> None:
    """Credentials reach the fetcher by its environment alone."""
    revision = [] if model.revision is None else ["--revision", model.revision]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagefleet_fetch", model.uri, "--only-facts", "--attempts=2", f"--into={into}", *revision,
        env={**os.environ, **credentials}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_READ_LIMIT_S):
            _, said = await process.communicate()
    except TimeoutError:
        raise FilesUnread(f"{model.uri}: no answer within {_READ_LIMIT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        raise FilesUnread(lines[-1] if lines else f"{model.uri}: the fetcher ended with status {process.returncode}")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigUnusable(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigUnusable(f"{path.name} holds no JSON object")
    return found
