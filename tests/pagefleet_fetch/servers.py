"""Servers on the loopback address: a hub with a store of large files beside it, and a plain web server.

The hub speaks what huggingface.co does: model info with siblings, `resolve` with ETag, X-Repo-Commit and
X-Linked-Etag, large files by a redirect to another host, ranges. Faults are queued by file.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tests.pagefleet_fetch.models import Known

COMMIT = "0e9e39f249a16976918f6564b8830bc894c89659"
LARGE = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class Fault:
    """What becomes of one request for a file: a status, bytes cut off, bytes changed, more of them, or each of them
    so many seconds after the last.
    """

    status: int | None = None
    cut_after: int | None = None
    flip_first_byte: bool = False
    longer_by: int = 0
    drip_s: float | None = None
    wait: threading.Event | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Served:
    """What a server has, and what it was asked."""

    files: dict[str, bytes]
    token: str | None = None
    ranges: bool = True
    address: str = ""
    store: str = ""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    asked: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    sent_bytes: int = 0

    def offsets(self, name: str) -> list[int]:
        """Where each request for the bytes of a file began."""
        found = [headers for method, path, headers in self.asked if method == "GET" and path.endswith(f"/{name}")]
        return [int(headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-")) for headers in found]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.asked.append((self.command, path, dict(self.headers.items())))
        self.route(path)

    def route(self, path: str) -> None:
        name = path.removeprefix("/")
        self.send_file(
            name, self.served.files.get(name), {"ETag": f'"{Known.of(self.served.files.get(name, b"")).sha256}"'}
        )

    def allowed(self) -> bool:
        return self.served.token is None or self.headers.get("Authorization") == f"Bearer {self.served.token}"

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_file(self, name: str, content: bytes | None, headers: Mapping[str, str]) -> None:
        queue = self.served.faults.get(name) if self.command == "GET" else None
        fault = queue.pop(0) if queue else Fault()
        if fault.wait is not None:
            fault.wait.wait(30)
        if content is None or fault.status is not None:
            self.answer(fault.status or 404, b"", **fault.headers)
            return
        asked = self.headers.get("Range") if self.served.ranges else None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        body = content[start:]
        body = bytes([body[0] ^ 1]) + body[1:] if fault.flip_first_byte else body
        body += bytes(fault.longer_by)
        self.send_response(206 if asked else 200)
        for header, value in headers.items():
            self.send_header(header, value)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            sent = body if fault.cut_after is None else body[: fault.cut_after]
            self.close_connection = fault.cut_after is not None
            if fault.drip_s is not None:
                self.drip(sent, fault.drip_s)
                return
            self.wfile.write(sent)
            self.served.sent_bytes += len(sent)

    def drip(self, body: bytes, every_s: float) -> None:
        """Until whoever asks has had enough."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            for place in range(len(body)):
                self.wfile.write(body[place : place + 1])
                self.served.sent_bytes += 1
                time.sleep(every_s)


class HubHandler(Handler):
    def route(self, path: str) -> None:
        if not self.allowed():
            error = (
                {"X-Error-Code": "GatedRepo"} if "Authorization" in self.headers else {"X-Error-Code": "RepoNotFound"}
            )
            self.answer(403 if "Authorization" in self.headers else 401, b'{"error": "no"}', **error)
        elif path.startswith("/api/models/org/name"):
            self.model_info(path.removeprefix("/api/models/org/name"))
        elif path.startswith(f"/org/name/resolve/{COMMIT}/"):
            self.resolve(path.removeprefix(f"/org/name/resolve/{COMMIT}/"))
        else:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")

    def model_info(self, rest: str) -> None:
        if rest not in {"", "/revision/main", f"/revision/{COMMIT}"}:
            self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
            return
        siblings: list[dict[str, object]] = []
        for name, content in self.served.files.items():
            known = Known.of(content)
            sibling: dict[str, object] = {"rfilename": name, "size": known.size, "blobId": known.blob_id}
            if name.endswith(LARGE):
                sibling["lfs"] = {"sha256": known.sha256, "size": known.size, "pointerSize": 134}
            siblings.append(sibling)
        info = {"_id": "1", "id": "org/name", "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        self.answer(200, json.dumps(info).encode(), Content_Type="application/json")

    def resolve(self, name: str) -> None:
        content = self.served.files.get(name)
        known = Known.of(content or b"")
        if content is not None and name.endswith(LARGE):
            linked = {"X_Linked_Etag": f'"{known.sha256}"', "X_Linked_Size": str(known.size)}
            self.answer(302, b"", Location=f"{self.served.store}/{name}", X_Repo_Commit=COMMIT, **linked)
        else:
            self.send_file(name, content, {"ETag": f'"{known.blob_id}"', "X-Repo-Commit": COMMIT})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that have had enough are what some tests are about."""


@contextlib.contextmanager
def serving(served: Served, handler: type[Handler] = Handler, host: str = "127.0.0.1") -> Iterator[Served]:
    """A server of its own on a free port."""
    server = _Server((host, 0), type("Bound", (handler,), {"served": served}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    served.address = f"http://{host}:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def hub(files: dict[str, bytes], token: str | None = None, host: str = "127.0.0.1") -> Iterator[tuple[Served, Served]]:
    """A hub, and the store that its large files are redirected to."""
    with (
        serving(Served(dict(files)), host=host) as store,
        serving(Served(dict(files), token, store=store.address), HubHandler, host) as front,
    ):
        yield front, store
