"""An InferenceService on a cluster, as a test or the demo looks at it."""

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from e2e.kubectl import Json, Kubectl, Watch
from pagefleet_api import labels
from pagefleet_api.load import LoadReport as PodLoad

KIND = f"{labels.PLURAL}.{labels.GROUP}"


class Pod(NamedTuple):
    """An engine pod."""

    name: str
    address: str | None
    node: str | None
    ready: bool
    serving: bool
    terminating: bool
    restarts: int
    body: Json

    @classmethod
    def parse(cls, body: Json) -> "Pod":
        meta, status = body["metadata"], body.get("status", {})
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        return cls(
            name=meta["name"],
            address=status.get("podIP"),
            node=body["spec"].get("nodeName"),
            ready=conditions.get("Ready") == "True",
            serving=meta.get("labels", {}).get(labels.SERVING) == labels.SERVING_TRUE,
            terminating="deletionTimestamp" in meta,
            restarts=sum(c.get("restartCount", 0) for c in status.get("containerStatuses", ())),
            body=body,
        )


def condition(body: Json, kind: str) -> Json | None:
    """One condition of an object; None while it has none of that type."""
    found: list[Json] = [c for c in body.get("status", {}).get("conditions", ()) if c["type"] == kind]
    return found[0] if found else None


def is_ready(body: Json, replicas: int | None = None) -> bool:
    """Whether the resource's status says Ready for its present spec.

    With `replicas`: so many are wanted and ready, and none is draining.
    """
    status = body.get("status", {})
    ready = condition(body, "Ready") or {}
    current = status.get("observedGeneration") == body["metadata"]["generation"]
    counts = [status.get(name, 0) for name in ("replicas", "readyReplicas", "drainingReplicas")]
    enough = replicas is None or counts == [replicas, replicas, 0]
    return current and ready.get("status") == "True" and enough


@dataclass(frozen=True, slots=True)
class Service:
    """One InferenceService by its name; `kubectl` is bound to its namespace."""

    kubectl: Kubectl
    name: str

    def object(self) -> Json:
        """The resource; LookupError when there is none."""
        found = self.kubectl.get(KIND, self.name)
        if found is None:
            raise LookupError(f"no InferenceService {self.name} in {self.kubectl.namespace}")
        return found

    @property
    def model(self) -> str:
        """The model name that its clients use."""
        name: str = self.object()["spec"]["model"].get("servedName") or self.name
        return name

    @property
    def status(self) -> Json:
        status: Json = self.object().get("status", {})
        return status

    def deployment(self) -> Json:
        found = self.kubectl.get("deployment", self.name)
        if found is None:
            raise LookupError(f"no Deployment {self.name} in {self.kubectl.namespace}")
        return found

    def pods(self) -> list[Pod]:
        """Its pods, terminating ones included, oldest first."""
        selector = ",".join(f"{key}={value}" for key, value in labels.selector(self.name).items())
        bodies = sorted(self.kubectl.items("pods", selector), key=lambda b: str(b["metadata"]["creationTimestamp"]))
        return [Pod.parse(body) for body in bodies]

    def events(self) -> list[Json]:
        """Events about the resource itself, oldest first."""
        about = [e for e in self.kubectl.items("events") if e.get("involvedObject", {}).get("kind") == labels.KIND]
        mine = [e for e in about if e["involvedObject"].get("name") == self.name]
        return sorted(mine, key=lambda e: str(e.get("eventTime") or e.get("lastTimestamp") or ""))

    def watch(self) -> Watch:
        return Watch(self.kubectl, KIND, self.name)

    def watch_deployment(self) -> Watch:
        return Watch(self.kubectl, "deployment", self.name)

    def wait_until_ready(self, replicas: int | None, timeout_s: float) -> Json:
        """The resource once its status says so.

        Raises:
            TimeoutError: with its last status.
        """
        with self.watch() as watch:
            return watch.until(lambda body: is_ready(body, replicas), timeout_s).body

    def cluster_url(self) -> str:
        """The OpenAI API at the Service's ClusterIP, which the box's host reaches."""
        found = self.kubectl.get("service", self.name)
        if found is None:
            raise LookupError(f"no Service {self.name} in {self.kubectl.namespace}")
        return f"http://{found['spec']['clusterIP']}:{labels.SERVICE_PORT}/v1"

    def scale(self, replicas: int) -> None:
        self.kubectl.run("scale", f"{KIND}/{self.name}", f"--replicas={replicas}")


def pod_load(pod: Pod, timeout_s: float = 5) -> PodLoad:
    """What a pod says of itself on its admin port; OSError when it does not answer."""
    with urllib.request.urlopen(f"http://{pod.address}:{labels.ADMIN_PORT}/load", timeout=timeout_s) as answer:
        return PodLoad.model_validate_json(answer.read())


def get_text(url: str, timeout_s: float = 10) -> str:
    """The text at `url`; OSError when there is none."""
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        text: str = answer.read().decode()
        return text


def get_json(url: str, timeout_s: float = 10) -> Any:
    """The JSON at `url`; OSError when there is none."""
    return json.loads(get_text(url, timeout_s))


def wait_for(what: str, holds: Callable[[], bool], timeout_s: float, every_s: float = 0.5) -> float:
    """Poll until `holds`; the seconds that it took.

    Raises:
        TimeoutError: it does not hold in time; the text names `what`.
    """
    start_s = time.monotonic()
    while not holds():
        if time.monotonic() - start_s > timeout_s:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(every_s)
    return time.monotonic() - start_s
