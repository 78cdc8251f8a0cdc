"""The API server: the only module of the operator that speaks to it. Watching is kopf's, over a session from here."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from pagefleet_api import labels
from pagefleet_operator.apiserver.api_errors import ApiError as ApiError
from pagefleet_operator.apiserver.api_errors import NotFound as NotFound
from pagefleet_operator.apiserver.api_errors import NotLeading as NotLeading
from pagefleet_operator.apiserver.api_errors import Outdated as Outdated
from pagefleet_operator.apiserver.api_errors import Refused as Refused
from pagefleet_operator.apiserver.api_errors import Terminating as Terminating
from pagefleet_operator.apiserver.api_errors import Unavailable as Unavailable
from pagefleet_operator.apiserver.api_errors import answer_error
from pagefleet_operator.apiserver.apply_body import apply_body
from pagefleet_operator.kinds import (
    ACCESS_REVIEW,
    API_SERVICES,
    CHILDREN,
    EVENT,
    INFERENCE_SERVICE,
    LEASE,
    NODE,
    POD,
    Kind,
)
from pagefleet_operator.metrics import Metrics, Operator
from pagefleet_operator.news import News, event_body
from pagefleet_operator.ownership import selector
from pagefleet_operator.settings import Settings

Body = dict[str, Any]
Connection: TypeAlias = ApiClient


_APPLY = "application/apply-patch+yaml; charset=utf-8"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_OURS = (("fieldManager", labels.FIELD_MANAGER),)
_FORCED = (*_OURS, ("force", "true"))


async def connect() -> Connection:
    """A client for $KUBECONFIG, else for the cluster that this process runs in, else for the user's kubeconfig.

    Raises `kubernetes.aio.config.ConfigException` when there is none of them. Proxy variables of the environment
    are ignored: they are meant for the way out of the cluster.
    """
    configuration = Configuration()
    if os.environ.get("KUBECONFIG") or not os.environ.get("KUBERNETES_SERVICE_HOST"):
        await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    configuration.client_session_kwargs = {"trust_env": False}
    return ApiClient(configuration)


async def watch_session(client: Connection, traces: Sequence[aiohttp.TraceConfig]) -> aiohttp.ClientSession:
    """A session of its own with the client's present credentials; call again when they are refused."""
    connector = aiohttp.TCPConnector(limit=0, ssl=client.rest_client.ssl_context)
    return aiohttp.ClientSession(
        connector=connector,
        headers=await _authorization(client),
        proxy=client.configuration.proxy,
        trace_configs=list(traces),
        trust_env=False,
        read_bufsize=2**21,
    )


async def _authorization(client: Connection) -> dict[str, str]:
    settings = await client.configuration.auth_settings()
    return {setting["key"]: setting["value"] for setting in settings.values() if setting["value"]}


class Cluster:
    """Reads and writes of single objects. Every write asks `may_write` first, is counted, and is bounded in time."""

    def __init__(
        self, client: Connection, settings: Settings, metrics: Metrics, *, may_write: Callable[[], bool]
    ) -> None:
        self._client, self._settings, self._metrics, self._may_write = client, settings, metrics, may_write
        self._answered_s: float | None = None

    def answers(self) -> bool:
        """Whether the server has answered anything lately."""
        recent_s = self._settings.timings.live_loop_s
        return self._answered_s is not None and time.monotonic() - self._answered_s < recent_s

    async def apply(self, manifest: Mapping[str, Any], kind: Kind | None = None) -> Body:
        """Server-side apply, taking over the fields that it names; without a kind, of a child."""
        kind, meta = kind or CHILDREN[manifest["kind"]], manifest["metadata"]
        path = kind.path(meta.get("namespace"), meta["name"])
        return await self._write("PATCH", kind, path, manifest, content_type=_APPLY, query=_FORCED)

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Body:
        """Create an object that is never changed afterwards. Outdated when there is one of that name already."""
        return await self._write("POST", kind, kind.path(manifest["metadata"]["namespace"]), manifest, query=_OURS)

    async def give_owners(self, kind: Kind, live: Mapping[str, Any], owners: Sequence[Mapping[str, Any]]) -> Body:
        """Set an object's owners. Outdated when it is not as `live` any more."""
        meta = live["metadata"]
        change = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "ownerReferences": list(owners)}
        path = kind.path(meta["namespace"], meta["name"])
        return await self._write("PATCH", kind, path, {"metadata": change}, content_type=_MERGE, query=_OURS)

    async def delete(self, kind: Kind, live: Mapping[str, Any]) -> None:
        """Delete a child and what it owns. Outdated when it is not as `live` any more, NotFound when it is gone."""
        meta = live["metadata"]
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "propagationPolicy": "Background",
        }
        await self._write("DELETE", kind, kind.path(meta.get("namespace"), meta["name"]), options)

    async def resize(self, kind: Kind, live: Mapping[str, Any], replicas: int) -> Body:
        """Set the number of a workload and nothing else of it. Outdated when it is another one of that name."""
        meta = live["metadata"]
        change = {"metadata": {"uid": meta["uid"]}, "spec": {"replicas": replicas}}
        path = kind.path(meta["namespace"], meta["name"])
        return await self._write("PATCH", kind, path, change, content_type=_MERGE, query=_OURS)

    async def mark_pod(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        pod_labels: Mapping[str, str | None],
        annotations: Mapping[str, str | None],
    ) -> Body:
        """Set labels and annotations of one pod in one write; None takes one away. Outdated when it is another pod."""
        meta = {"uid": uid, "labels": dict(pod_labels), "annotations": dict(annotations)}
        path = POD.path(namespace, name)
        return await self._write("PATCH", POD, path, {"metadata": meta}, content_type=_MERGE, query=_OURS)

    async def mark_node(self, name: str, label: str, value: str | None) -> Body:
        """Set one label of a node; None takes it away. NotFound when the node is gone."""
        change = {"metadata": {"labels": {label: value}}}
        return await self._write("PATCH", NODE, NODE.path(None, name), change, content_type=_MERGE, query=_OURS)

    async def write_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> Body:
        """Apply the whole status; what is left out goes away."""
        body = {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        path = INFERENCE_SERVICE.path(namespace, name, "status")
        return await self._write("PATCH", INFERENCE_SERVICE, path, body, content_type=_APPLY, query=_FORCED)

    async def post_event(self, namespace: str, name: str, uid: str, news: News) -> None:
        """Put an Event on an InferenceService; the same words within the same minute are one Event."""
        event = event_body(namespace, name, uid, news, datetime.now(UTC))
        body = {
            **event,
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "reportingInstance": self._settings.identity[:128],
        }
        with contextlib.suppress(Outdated):
            await self._write("POST", EVENT, EVENT.path(namespace), body)

    async def read(self, kind: Kind, namespace: str | None, name: str) -> Body | None:
        """One object, or None when there is none."""
        try:
            return await self._request("GET", kind.path(namespace, name), timeout_s=self._read_timeout_s)
        except NotFound:
            return None

    async def items(
        self, kind: Kind, namespace: str | None, *, fields: str = "", marks: str = "", newest: bool = False
    ) -> list[Body]:
        """Objects of a kind that selectors of fields and labels (`marks`) take.

        newest: as they are now; else as the server has them in its memory, which asks less of it.
        """
        given = {"resourceVersion": "" if newest else "0", "fieldSelector": fields, "labelSelector": marks}
        query = [(name, value) for name, value in given.items() if value]
        answer = await self._request("GET", kind.path(namespace), query=query, timeout_s=self._read_timeout_s)
        return list(answer.get("items") or ())

    async def listed(self, kind: Kind, namespace: str | None) -> list[Body]:
        """The metadata of all our objects of a kind, as the server's storage has them now. NotFound when it does not
        have the kind."""
        children = f"{labels.MANAGED_BY}={labels.FIELD_MANAGER}"
        ours = selector(self._settings.shard) if kind is INFERENCE_SERVICE else children
        answer = await self._request(
            "GET",
            kind.path(namespace),
            query=(("labelSelector", ours),),
            timeout_s=self._read_timeout_s,
            accept=_METADATA_ONLY,
        )
        return list(answer.get("items") or ())

    async def uids(self, kind: Kind, namespace: str | None) -> set[str]:
        """The uids of the same."""
        return {item["metadata"]["uid"] for item in await self.listed(kind, namespace)}

    async def serves_our_kind(self) -> bool:
        """Whether the CRD is there and established."""
        try:
            answer = await self._request("GET", f"/apis/{labels.API_VERSION}", timeout_s=self._read_timeout_s)
        except NotFound:
            return False
        return any(resource["name"] == labels.PLURAL for resource in answer.get("resources") or ())

    async def trust(self, live: Mapping[str, Any], authority: str) -> None:
        """Let the API server trust whom `authority` (base64 of PEM) signed. Outdated when `live` has changed."""
        meta = {"uid": live["metadata"]["uid"], "resourceVersion": live["metadata"]["resourceVersion"]}
        path = API_SERVICES.path(None, live["metadata"]["name"])
        body = {"metadata": meta, "spec": {"caBundle": authority}}
        await self._write("PATCH", API_SERVICES, path, body, content_type=_MERGE, query=_OURS)

    async def allows(self, review: Mapping[str, Any]) -> bool:
        """What the API server says to a SubjectAccessReview."""
        answer = await self._request("POST", ACCESS_REVIEW.path(None), review, timeout_s=self._read_timeout_s)
        return bool((answer.get("status") or {}).get("allowed"))

    async def read_lease(self, namespace: str, name: str) -> Body | None:
        """The Lease, or None when there is none."""
        try:
            return await self._request("GET", LEASE.path(namespace, name), timeout_s=self._write_timeout_s)
        except NotFound:
            return None

    async def write_lease(self, lease: Body) -> Body:
        """Create (without a resource version) or replace the Lease. Raises Outdated when another was faster."""
        meta = lease["metadata"]
        replaces = "resourceVersion" in meta
        path = LEASE.path(meta["namespace"], *((meta["name"],) if replaces else ()))
        return await self._request(
            "PUT" if replaces else "POST", path, lease, query=_OURS, timeout_s=self._write_timeout_s
        )

    @property
    def _write_timeout_s(self) -> float:
        return self._settings.timings.write_timeout_s

    @property
    def _read_timeout_s(self) -> float:
        return self._settings.timings.read_timeout_s

    async def _write(
        self,
        method: str,
        kind: Kind,
        path: str,
        body: Mapping[str, Any],
        *,
        content_type: str = _JSON,
        query: Sequence[tuple[str, str]] = (),
    ) -> Body:
        if not self._may_write():
            raise NotLeading("another replica leads")
        self._metrics.add(Operator.API_WRITES, kind.name)
        return await self._request(
            method, path, body, content_type=content_type, query=query, timeout_s=self._write_timeout_s
        )

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = _JSON,
        query: Sequence[tuple[str, str]] = (),
        timeout_s: float,
        accept: str = _JSON,
    ) -> Body:
        url = f"{self._client.configuration.host.rstrip('/')}{path}?{urlencode(query)}"
        headers = {"Accept": accept, "Content-Type": content_type, **await _authorization(self._client)}
        try:
            async with asyncio.timeout(timeout_s):
                sent = apply_body(body) if body is not None and content_type == _APPLY else body
                answer = await self._client.call_api(method, url, headers, sent)
                text = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{method} {path}: {error or type(error).__name__}") from error
        self._answered_s = time.monotonic()
        if answer.status < 300:
            return dict(json.loads(text)) if text else {}
        raise answer_error(answer.status, text, f"{method} {path}")
