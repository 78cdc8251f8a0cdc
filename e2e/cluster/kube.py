"""The few requests that the launcher itself sends to the API server, without a client library."""

import base64
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.cluster.errors import BoxError

Json = dict[str, Any]


class ApiServer:
    """One API server, reached with the credentials of one kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._address = urlsplit(cluster["server"])
        self._tls = ssl.create_default_context(cadata=_decode(cluster["certificate-authority-data"]))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
            pem.write(_decode(user["client-certificate-data"]) + _decode(user["client-key-data"]))
            pem.flush()
            self._tls.load_cert_chain(pem.name)

    def _request(self, method: str, path: str, body: Json | None, content_type: str) -> tuple[int, bytes]:
        host, port = self._address.hostname or "", self._address.port
        connection = http.client.HTTPSConnection(host, port, timeout=5, context=self._tls)
        try:
            headers = {"Content-Type": content_type, "Accept": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ready(self) -> bool:
        try:
            return self._request("GET", "/readyz", None, "")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> Json | None:
        """The object at `path`; None when it is not there or the server is not."""
        try:
            status, body = self._request("GET", path, None, "")
        except (OSError, http.client.HTTPException):
            return None
        found: Json | None = json.loads(body) if status == 200 else None
        return found

    def apply(self, path: str, manifest: Json) -> None:
        """Server-side apply; BoxError with the server's words when it refuses."""
        query = f"{path}?fieldManager=pagefleet-box&force=true"
        status, body = self._request("PATCH", query, manifest, "application/apply-patch+yaml")
        if status >= 300:
            raise BoxError(f"{path} was refused ({status}): {body.decode(errors='replace')}")


def _decode(data: str) -> str:
    return base64.b64decode(data).decode()
