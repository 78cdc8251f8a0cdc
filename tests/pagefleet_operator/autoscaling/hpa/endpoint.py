"""A custom-metrics API of our own: it serves the rehearsal's readings, and notes what it said and when."""

import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

API_GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta1", "v1beta2")
Readings = dict[str, int]
"""Thousandths by pod name; a silent pod has none."""


class Endpoint:
    """Answers on `port` with `readings(scenario)`; the scenario is the value of the selector's `app`."""

    def __init__(self, port: int, certificate: Path, key: Path, readings: Callable[[str], Readings]) -> None:
        handler = _handler(readings)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """No more answers."""
        self._server.shutdown()
        self._server.server_close()


def _handler(readings: Callable[[str], Readings]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            body = json.dumps(_answer(self.path, readings)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _answer(path: str, readings: Callable[[str], Readings]) -> dict[str, Any]:
    url = urlsplit(path)
    parts = unquote(url.path).strip("/").split("/")
    version = f"{API_GROUP}/{parts[2]}" if len(parts) > 2 else API_GROUP
    if len(parts) <= 3:
        resource = {"name": "pods/load", "singularName": "", "namespaced": True, "kind": "MetricValueList"}
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": [{**resource, "verbs": ["get"]}],
        }
    namespace = parts[4]
    scenario = parse_qs(url.query)["labelSelector"][0].partition("=")[2]
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {
            "describedObject": {"kind": "Pod", "namespace": namespace, "name": name, "apiVersion": "/v1"},
            "metric": {"name": parts[-1], "selector": None},
            "timestamp": stamp,
            "value": f"{value}m",
        }
        for name, value in readings(scenario).items()
    ]
    return {"kind": "MetricValueList", "apiVersion": version, "metadata": {}, "items": items}
