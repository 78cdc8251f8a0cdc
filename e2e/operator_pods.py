"""The operator on the cluster: its pods, its Lease, its metrics, and its sudden death."""

from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.configuration import CONTAINERD_SOCKET
from e2e.diagnosis import SYSTEM_NAMESPACE
from e2e.kubectl import Json, Kubectl
from e2e.release import MAIN, Release
from e2e.service import get_text, wait_for
from e2e.sites import BoxSite


class Operator:
    """The Deployment of a release's operator as a test sees it."""

    def __init__(self, place: BoxSite, release: Release = MAIN) -> None:
        self._place, self._release = place, release
        self.kubectl: Kubectl = place.kubectl.within(SYSTEM_NAMESPACE)

    def pods(self) -> list[Json]:
        """Its pods that are not on their way out."""
        return [
            p
            for p in self.kubectl.items("pods", self._release.operator_pods)
            if "deletionTimestamp" not in p["metadata"]
        ]

    def leader(self) -> str | None:
        """The holder of the Lease; None while nobody has it."""
        lease = self.kubectl.get("lease", self._release.operator)
        holder: str | None = (lease or {}).get("spec", {}).get("holderIdentity")
        return holder or None

    def scale(self, replicas: int, timeout_s: float = 60) -> None:
        """Run so many operators and wait until all are ready."""
        deployment = f"deployment/{self._release.operator}"
        self.kubectl.run("scale", deployment, f"--replicas={replicas}")
        self.kubectl.run("rollout", "status", deployment, f"--timeout={timeout_s:.0f}s", timeout_s=120)
        wait_for("the surplus operators are gone", lambda: len(self.pods()) == replicas, timeout_s)

    def kill(self, name: str | None = None) -> None:
        """SIGKILL to the processes of one pod (default: the leader's), as a crash of the node would have it."""
        victim = name or self.leader()
        for pod in self.pods():
            if victim in (None, pod["metadata"]["name"]):
                kill_container(self._place, pod)
                return
        raise LookupError(f"no operator pod {victim}")

    def remove_at_once(self, name: str) -> None:
        """SIGKILL, and the pod is gone for good: its successor is another pod."""
        self.kubectl.run("delete", "pod", name, "--grace-period=0", "--force")

    def metric(self, name: str, **labels: str) -> float | None:
        """The sum over the operator pods of the samples with these labels; None when there is none."""
        values = [
            sample.value
            for pod in self.pods()
            for family in text_string_to_metric_families(get_text(f"http://{pod['status']['podIP']}:8080/metrics"))
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else None


def kill_container(place: BoxSite, pod: Json) -> None:
    """SIGKILL to the first process of a pod's first container; everything in it dies at once.

    Raises:
        RuntimeError: the node's runtime refuses.
    """
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    words = ["ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", "task", "kill", "-s", "SIGKILL", container]
    result = place.box.node_exec(pod["spec"]["nodeName"], words)
    if result.returncode:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")
