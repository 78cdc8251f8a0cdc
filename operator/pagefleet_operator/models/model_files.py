"""Reads a model's config.json and index by the fetcher, in a process of its own: its libraries and a user's credentials
stay out of this one.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pagefleet_api.download import DownloadFailure
from pagefleet_api.sizing import adapters
from pagefleet_api.sizing.adapters import AdapterFacts
from pagefleet_api.sizing.facts import CONFIG_FILE, INDEX_FILE, ModelFacts
from pagefleet_api.sizing.fields import ConfigUnusable

_READ_LIMIT_S = 60.0
_IDENTITIES = ("AWS_", "AZURE_", "GOOGLE_", "IDENTITY_", "MSI_", "HTTP_AUTHORIZATION")
"""Variables by which a cloud gives this pod an identity: a user's bucket must not be opened with it."""


class FilesUnread(Exception):
    """A model's files could not be read; the text is the fetcher's, with the way out.

    busy: their source may answer another time, not before `after_s` where it said so.
    """

    def __init__(self, message: str, *, busy: bool = False, after_s: float | None = None) -> None:
        super().__init__(message)
        self.busy, self.after_s = busy, after_s


class ModelKey(NamedTuple):
    """One version of a model, or of an adapter. `secret` opens it (namespace and name), or everybody may read it."""

    uri: str
    revision: str | None = None
    secret: tuple[str, str] | None = None
    adapter: bool = False

    @property
    def file(self) -> str:
        """What of it must be there."""
        return adapters.CONFIG_FILE if self.adapter else CONFIG_FILE


Facts = ModelFacts | AdapterFacts


async def read_any(model: ModelKey, credentials: Mapping[str, str]) -> Facts:
    """The facts of a model, or of an adapter, by the fetcher. Raises FilesUnread."""
    return await (read_adapter if model.adapter else read_files)(model, credentials)


async def read_files(model: ModelKey, credentials: Mapping[str, str]) -> ModelFacts:
    """The model's facts by the fetcher. Raises FilesUnread."""
    async with _fetched(model, credentials) as folder:
        index = folder / INDEX_FILE
        return ModelFacts.read(_json(folder / CONFIG_FILE), index=_json(index) if index.exists() else None)


async def read_adapter(adapter: ModelKey, credentials: Mapping[str, str]) -> AdapterFacts:
    """The adapter's facts likewise. Raises FilesUnread."""
    async with _fetched(adapter, credentials) as folder:
        return AdapterFacts.read(_json(folder / adapters.CONFIG_FILE))


@contextlib.asynccontextmanager
async def _fetched(model: ModelKey, credentials: Mapping[str, str]) -> AsyncIterator[Path]:
    """A folder with the files that tell sizes, while they are read. Raises FilesUnread, also for what those raise."""
    work = Path(tempfile.mkdtemp(prefix="pagefleet-facts-"))
    try:
        await _fetch(model, work / "model", credentials)
        yield work / "model"
    except ConfigUnusable as error:
        raise FilesUnread(f"{model.uri}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


async def _fetch(model: ModelKey, into: Path, credentials: Mapping[str, str]) -> None:
    """Credentials reach the fetcher by its environment alone. When to try again is ours to decide, so it tries once.

    No redirect is followed elsewhere: only the first address was looked at.
    """
    revision = [] if model.revision is None else ["--revision", model.revision]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagefleet_fetch", model.uri, "--only-facts", "--same-origin", "--attempts=1",
        f"--into={into}", *revision, env={**_own_environment(), **credentials}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_READ_LIMIT_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise FilesUnread(f"{model.uri}: no answer within {_READ_LIMIT_S:.0f} s", busy=True) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        told = DownloadFailure.parse(printed.decode(errors="replace"))
        if told is None:
            raise FilesUnread(f"{model.uri}: the fetcher ended with status {process.returncode}")
        raise FilesUnread(told.error, busy=told.busy, after_s=told.after_seconds)


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_IDENTITIES)}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigUnusable(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigUnusable(f"{path.name} holds no JSON object")
    return found
