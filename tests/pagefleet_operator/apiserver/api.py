"""The API server as a test sees it: short calls, and waiting for a state with a sentence when it does not come."""

import base64
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pagefleet_api import labels

Json = dict[str, Any]
T = TypeVar("T")

_PREFIXES = {
    "pods": "/api/v1",
    "nodes": "/api/v1",
    "resourcequotas": "/api/v1",
    "secrets": "/api/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "namespaces": "/api/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "daemonsets": "/apis/apps/v1",
    "persistentvolumes": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "jobs": "/apis/batch/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "mutatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1",
    "leaderworkersets": "/apis/leaderworkerset.x-k8s.io/v1",
    "events": "/apis/events.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "inferenceservices": f"/apis/{labels.API_VERSION}",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
}


class ApiRefusal(Exception):
    """An answer of 300 and more."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Synchronous calls with an administrator's kubeconfig (JSON, data embedded)."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        address = urlsplit(cluster["server"])
        self.host, self.port = address.hostname or "", address.port or 443
        self._tls = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
            pem.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
            pem.flush()
            self._tls.load_cert_chain(pem.name)

    def call(self, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> Json:
        """The parsed answer; ApiRefusal with the server's message otherwise. "Come later" is obeyed."""
        while True:
            try:
                return self._call(method, path, body, content_type)
            except ApiRefusal as refusal:
                if refusal.status != 429:
                    raise
            time.sleep(0.5)

    def _call(self, method: str, path: str, body: Json | None, content_type: str) -> Json:
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=10, context=self._tls)
        try:
            headers = {"Content-Type": content_type, "Accept": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        finally:
            connection.close()
        parsed: Json = json.loads(text) if text else {}
        if status >= 300:
            raise ApiRefusal(status, parsed.get("message", text.decode(errors="replace")))
        return parsed

    def path(self, plural: str, namespace: str | None = None, name: str = "") -> str:
        """The URL path of a collection or an object."""
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{_PREFIXES[plural]}{middle}/{plural}{f'/{name}' if name else ''}"

    def get(self, plural: str, namespace: str | None, name: str) -> Json | None:
        """One object, or None."""
        try:
            return self.call("GET", self.path(plural, namespace, name))
        except ApiRefusal as refusal:
            if refusal.status == 404:
                return None
            raise

    def list(self, plural: str, namespace: str | None = None, selector: str = "") -> list[Json]:
        """All objects of a kind."""
        query = f"?labelSelector={selector}" if selector else ""
        items: list[Json] = self.call("GET", self.path(plural, namespace) + query)["items"]
        return items

    def create(self, plural: str, body: Json, *, strict: bool = False) -> Json:
        """POST of a new object."""
        query = "?fieldValidation=Strict" if strict else ""
        return self.call("POST", self.path(plural, body["metadata"].get("namespace")) + query, body)

    def merge(self, plural: str, namespace: str | None, name: str, patch: Json, subresource: str = "") -> Json:
        """Merge patch."""
        tail = f"/{subresource}" if subresource else ""
        path = self.path(plural, namespace, name) + tail + "?fieldManager=somebody"
        return self.call("PATCH", path, patch, "application/merge-patch+json")

    def delete(self, plural: str, namespace: str | None, name: str, options: Json | None = None) -> None:
        """DELETE; an object that is not there is fine."""
        try:
            self.call("DELETE", self.path(plural, namespace, name), options)
        except ApiRefusal as refusal:
            if refusal.status != 404:
                raise

    def bind(self, namespace: str, pod: str, node: str) -> None:
        """Place a pod, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        self.call("POST", self.path("pods", namespace, pod) + "/binding", body)

    def evict(self, namespace: str, pod: str) -> bool:
        """Ask for a pod's eviction, as `kubectl drain` does; False where a budget forbids it now."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        try:
            self._call("POST", self.path("pods", namespace, pod) + "/eviction", body, "application/json")
        except ApiRefusal as refusal:
            if refusal.status != 429:
                raise
            return False
        return True


def eventually(state: Callable[[], T], what: str, timeout_s: float = 15.0, every_s: float = 0.1) -> T:
    """The first truthy `state()`; AssertionError with `what` and the last value when it does not come."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = state()
        if value:
            return value
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what} (last: {value!r})"
        time.sleep(every_s)


def never(state: Callable[[], object], what: str, during_s: float, every_s: float = 0.1) -> None:
    """AssertionError as soon as `state()` is truthy within that time."""
    deadline_s = time.monotonic() + during_s
    while time.monotonic() < deadline_s:
        found = state()
        assert not found, what if found is True else f"{what}: {found}"
        time.sleep(every_s)


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()
