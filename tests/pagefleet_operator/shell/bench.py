"""A reconciler around which everything is in memory: API server, engines, cache."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from pagefleet_api import labels
from pagefleet_api.download import DownloadProgress
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.facts.latencies import Latencies
from pagefleet_operator.facts.observed import Pod, Sample
from pagefleet_operator.kinds import NODE, Kind
from pagefleet_operator.metrics import Metrics
from pagefleet_operator.news import News
from pagefleet_operator.reconciling.reconcile import Reconciler
from pagefleet_operator.settings import Settings

KEY = ServiceKey("n", "s")


class Server:
    """An API server that writes down what it is asked and answers as a real one would."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.refuses: dict[str, api.ApiError] = {}
        self.foreign: dict[str, Any] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.version = 100
        self.drops_image_volumes = False
        self.during: Callable[[str], None] = lambda _: None
        """Called with each write while it is under way."""

    def _write(self, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if call in self.refuses:
            raise self.refuses[call]
        self.calls.append(call)
        self.during(call)
        self.bodies.append(body)
        self.version += 1
        kept = self.objects.get(call.partition(" ")[2], {})
        meta = {"uid": f"uid {call}", "namespace": "n", **kept.get("metadata", {}), **body.get("metadata", {})}
        return {**kept, **body, "metadata": {**meta, "resourceVersion": str(self.version)}}

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        written = self._write(f"apply {manifest['kind']}", manifest)
        if self.drops_image_volumes and manifest["kind"] == "Deployment":
            written = copy.deepcopy(written)
            pod = written["spec"]["template"]["spec"]
            pod["volumes"] = [volume for volume in pod["volumes"] if "image" not in volume]
        return written

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> dict[str, Any]:
        meta = {"uid": f"uid create {kind.name} {manifest['metadata']['name']}", **manifest["metadata"]}
        return {"kind": kind.name, **self._write(f"create {kind.name}", {**manifest, "metadata": meta})}

    async def give_owners(self, kind: Kind, live: Mapping[str, Any], owners: Any) -> dict[str, Any]:
        meta = {**live["metadata"], "ownerReferences": list(owners)}
        return {**live, **self._write(f"own {kind.name}", {"metadata": meta})}

    async def delete(self, kind: Kind, live: Mapping[str, Any]) -> None:
        self._write(f"delete {kind.name}", live)

    async def resize(self, kind: Kind, live: Mapping[str, Any], replicas: int) -> dict[str, Any]:
        spec = {**live["spec"], "replicas": replicas}
        return {**live, **self._write(f"resize {kind.name}", {"metadata": live["metadata"], "spec": spec})}

    async def mark_pod(
        self, namespace: str, name: str, uid: str, *, pod_labels: Mapping[str, Any], annotations: Mapping[str, Any]
    ) -> dict[str, Any]:
        change = "+".join((*pod_labels.values(), *(key.rpartition("/")[2] for key in annotations)))
        kept = self.objects[name]["metadata"]
        merged = {
            **kept,
            "labels": {**kept["labels"], **pod_labels},
            "annotations": {**kept.get("annotations", {}), **annotations},
        }
        self.objects[name]["metadata"] = merged
        return self._write(f"mark {name}", {"kind": "Pod", "metadata": merged, "change": change})

    async def write_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
        return self._write("status", {**self.objects[name], "status": status})

    async def post_event(self, namespace: str, name: str, uid: str, note: News) -> None:
        self._write(f"event {note.reason}", {"metadata": {}})

    async def read(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        return self.foreign.get(kind.name)

    async def items(self, kind: Kind, namespace: str | None, *, fields: str = "") -> list[dict[str, Any]]:
        return self.nodes if kind == NODE else []


class Engines:
    """A scraper without engines."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self.watched: dict[ServiceKey, tuple[float, bool]] = {}
        self.known: dict[str, Sample] = {}
        self.measured: dict[str, Latencies] = {}
        self.downloads: dict[str, DownloadProgress] = {}
        self.fresh: dict[str, Sample] = {}
        """What a look at the engines would find."""

    def watch(self, key: ServiceKey, pods: Any, *, interval_s: float, matters: bool, latencies: bool = False) -> None:
        self.watched[key] = (interval_s, matters)

    def forget(self, key: ServiceKey) -> None:
        self.watched.pop(key, None)

    def samples(self, key: ServiceKey) -> dict[str, Sample]:
        return self.known

    def latencies(self, key: ServiceKey) -> dict[str, Latencies]:
        return self.measured

    async def progress(self, pod: Pod) -> DownloadProgress | None:
        return self.downloads.get(pod.name)

    async def look(self, key: ServiceKey) -> None:
        self.known |= self.fresh

    async def drain(self, pod: Pod) -> bool:
        self._calls.append(f"drain {pod.name}")
        return True

    async def undrain(self, pod: Pod) -> bool:
        self._calls.append(f"undrain {pod.name}")
        return True


class Bench:
    """A reconciler around which everything is in memory."""

    def __init__(self) -> None:
        self.server, self.cache, self.metrics = Server(), WatchCache(), Metrics()
        self.engines = Engines(self.server.calls)
        self.again: list[tuple[ServiceKey, float]] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another operator takes over, which remembers nothing."""
        self.reconciler = Reconciler(
            Settings(),
            self.cache,
            self.server,  # type: ignore[arg-type]
            self.engines,  # type: ignore[arg-type]
            self.metrics,
            lambda key, delay_s: self.again.append((key, delay_s)),
        )

    def service(self, version: int = 1, **spec: Any) -> None:
        meta = {"namespace": "n", "name": "s", "uid": "u", "resourceVersion": str(version), "generation": version}
        whole = {"model": {"uri": "pkg://m"}, "replicas": 1, **spec}
        self.server.objects["s"] = {"kind": labels.KIND, "metadata": meta, "spec": whole}
        self.cache.put(labels.KIND, self.server.objects["s"])

    def pod(self, name: str, *, ready: bool = True) -> None:
        pod_labels = {labels.SERVICE: "s", labels.SERVING: labels.SERVING_TRUE}
        meta = {"namespace": "n", "name": name, "uid": f"uid {name}", "resourceVersion": "1", "labels": pod_labels}
        status = {
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": labels.CONTAINER, "state": {"running": {}}, "started": ready}],
        }
        body = {"kind": "Pod", "metadata": meta, "status": status}
        self.server.objects[name] = body
        self.cache.put("Pod", body)

    async def passes(self, count: int = 1) -> list[str]:
        """Calls of so many passes."""
        self.server.calls.clear()
        for _ in range(count):
            await self.reconciler.converge(KEY)
        return list(self.server.calls)
