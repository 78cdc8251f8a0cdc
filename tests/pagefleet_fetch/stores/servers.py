"""Real servers of two object stores on the loopback address: Azurite, Microsoft's own for Azure Blob Storage, and
fake-gcs-server for Google Cloud Storage. Both are installed once into the user's cache, by npm and Go.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote

from e2e.cluster.binaries import cache_folder
from e2e.cluster.locks import locked
from tests.ports import free_port

AZURITE, FAKE_GCS = "3.37.0", "1.56.1"
CONTAINER = "models"
_ACCOUNT = "account"
_START_LIMIT_S = 60.0


class Store(Protocol):
    """A server with one bucket, `models`."""

    scheme: str
    environment: Mapping[str, str]

    def put(self, name: str, content: bytes) -> None:
        """Make an object, or another one in its place."""


class Google(NamedTuple):
    """fake-gcs-server asks nobody for a token, so the key is of an account that gets none."""

    address: str
    scheme: str = "gs"

    @property
    def environment(self) -> Mapping[str, str]:
        key = {"client_email": "a@b", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return {"GOOGLE_BASE_URL": self.address, "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}

    def make_bucket(self) -> None:
        _send(f"{self.address}/storage/v1/b", "POST", json.dumps({"name": CONTAINER}).encode(), {})

    def put(self, name: str, content: bytes) -> None:
        place = f"{self.address}/upload/storage/v1/b/{CONTAINER}/o?uploadType=media&name={quote(name, safe='')}"
        _send(place, "POST", content, {"Content-Type": "application/octet-stream"})


class Azure(NamedTuple):
    """Azurite with an account of ours, whose requests are signed as in the cloud."""

    address: str
    key: str
    scheme: str = "az"

    @property
    def environment(self) -> Mapping[str, str]:
        names = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT")
        return dict(zip(names, (_ACCOUNT, self.key, f"{self.address}/{_ACCOUNT}"), strict=True))

    def make_bucket(self) -> None:
        self._put(f"/{_ACCOUNT}/{CONTAINER}", b"", {}, "restype:container")

    def put(self, name: str, content: bytes) -> None:
        self._put(f"/{_ACCOUNT}/{CONTAINER}/{quote(name)}", content, {"x-ms-blob-type": "BlockBlob"})

    def _put(self, path: str, content: bytes, headers: dict[str, str], *query: str) -> None:
        """Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key"""
        own = {**headers, "x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        kind, length = "application/octet-stream", str(len(content)) if content else ""
        lines = ["PUT", "", "", length, "", kind, "", "", "", "", "", ""]
        lines += [f"{name}:{own[name]}" for name in sorted(own)] + [f"/{_ACCOUNT}{path}", *query]
        digest = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256).digest()
        signed = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        address = f"{self.address}{path}" + "".join(f"?{one.replace(':', '=')}" for one in query)
        _send(address, "PUT", content, {**own, "Content-Type": kind, "Authorization": signed})


@contextlib.contextmanager
def google() -> Iterator[Google]:
    """A running server with an empty bucket."""
    program, port = _fake_gcs(), free_port()
    store = Google(f"http://127.0.0.1:{port}")
    public = f"-public-host=127.0.0.1:{port}"
    flags = ["-backend=memory", "-host=127.0.0.1", f"-port={port}", "-scheme=http", public, "-log-level=error"]
    with _running([str(program), *flags], {}, port):
        store.make_bucket()
        yield store


@contextlib.contextmanager
def azure() -> Iterator[Azure]:
    """A running server with an empty container."""
    script, port = _azurite(), free_port()
    store = Azure(f"http://127.0.0.1:{port}", base64.b64encode(secrets.token_bytes(32)).decode())
    flags = ["--inMemoryPersistence", "--blobHost=127.0.0.1", f"--blobPort={port}", "--silent", "--disableTelemetry"]
    accounts = {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{store.key}"}
    with _running(["node", str(script), *flags, "--skipApiVersionCheck"], accounts, port):
        store.make_bucket()
        yield store


def _send(address: str, method: str, content: bytes, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(address, data=content, method=method, headers=dict(headers))
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {address}: HTTP {error.code}: {error.read().decode(errors='replace')}") from error


@contextlib.contextmanager
def _running(command: list[str], environment: Mapping[str, str], port: int) -> Iterator[None]:
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not _is_open(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                process.kill()
                raise RuntimeError(f"{command[0]} does not listen on {port}: {process.communicate()[0]}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.communicate()


def _fake_gcs() -> Path:
    folder = cache_folder() / "stores" / f"fake-gcs-server-{FAKE_GCS}"
    package = f"github.com/fsouza/fake-gcs-server@v{FAKE_GCS}"
    _installed(folder, ["go", "install", package], {"GOBIN": f"{folder}.partial", "CGO_ENABLED": "0"})
    return folder / "fake-gcs-server"


def _azurite() -> Path:
    folder = cache_folder() / "stores" / f"azurite-{AZURITE}"
    quiet = ["--no-audit", "--no-fund", "--omit=dev", "--ignore-scripts", "--prefix", f"{folder}.partial"]
    _installed(folder, ["npm", "install", *quiet, f"azurite@{AZURITE}"])
    return folder / "node_modules/azurite/dist/src/blob/main.js"


def _installed(folder: Path, command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Install into `folder` by `command`, which fills the folder beside it that ends in .partial."""
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{command[0]} is missing: install it and put it on the PATH")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent):
        if folder.is_dir():
            return
        partial = Path(f"{folder}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        subprocess.run(command, check=True, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL)
        partial.rename(folder)


def _is_open(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
