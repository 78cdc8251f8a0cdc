"""One service that swings, round after round, in a thread of its own."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from bench.scale_downs.rows import Round, counted
from bench.scale_downs.subjects import SWINGS, Engines, Swing, ask, service
from e2e import manifests
from e2e.answers import Answer
from e2e.exchange import Target
from e2e.kubectl import Kubectl, Seen, Watch
from e2e.load import Load, LoadPlan
from e2e.operator_pods import Operator
from e2e.service import Pod, Service, is_ready, pod_load, wait_for
from pagefleet_api import labels
from pagefleet_api.metrics import NAMESPACE, SERVICE
from pagefleet_api.metrics import Operator as Metrics

_UP_S, _OPEN_S, _DOWN_S = 300.0, 300.0, 300.0


class Drains(NamedTuple):
    """Counted so far by the operator for one service."""

    ended: int
    aborted: int

    def since(self, before: "Drains") -> "Drains":
        """What came after `before`. An operator that lost its Lease in between begins anew: then at least so many."""
        return Drains(self.ended - before.ended, self.aborted - before.aborted) if self.ended >= before.ended else self


class Swinging:
    """A service on the cluster and the load on it."""

    def __init__(self, kubectl: Kubectl, operator: Operator, engines: Engines, name: str) -> None:
        self.service, self.engines = Service(kubectl, name), engines
        self._operator = operator
        self._swing: Swing = SWINGS[engines]
        self._url = ""

    def begin(self) -> None:
        """Make the service; TimeoutError when it does not become ready."""
        self.service.kubectl.apply(manifests.text(service(self.engines, self.service.name)))
        self.service.wait_until_ready(1, _UP_S)
        self._url = self.service.cluster_url()

    def end(self) -> None:
        """Take it away."""
        self.service.kubectl.run("delete", "infs", self.service.name, "--wait=false")

    def round(self, number: int) -> Round:
        """Up, hold, and down to one pod again; TimeoutError when a part takes far too long."""
        began_s, before = time.monotonic(), self._drains()
        with self.service.watch() as status, leavers(self.service) as seen:
            answers = self._wave(status, number)
        drains = self._drains().since(before)
        return Round(
            engines=str(self.engines),
            service=self.service.name,
            scale_downs=drains.ended,
            aborted=drains.aborted,
            in_flight=seen.in_flight(),
            seconds=round(time.monotonic() - began_s, 1),
            **counted(answers),
        )

    def _wave(self, status: Watch, number: int) -> list[Answer]:
        swing, began_s = self._swing, time.monotonic()
        with (
            self._load(swing.base, swing.base_tokens, f"{number} base") as base,
            self._load(swing.pressing, swing.base_tokens, f"{number} pressing") as pressing,
        ):
            status.until(lambda body: is_ready(body, swing.pods), _UP_S, began_s)
            with self._load(swing.held, swing.held_tokens, f"{number} held", requests=swing.held) as held:
                wait_for("held streams have begun", lambda: _begun(held, swing), _OPEN_S, every_s=0.1)
                ended_s = time.monotonic()
                answers = [*pressing.wait(_DOWN_S), *held.wait(_DOWN_S)]
            status.until(lambda body: is_ready(body, 1), _DOWN_S, ended_s)
            return [*answers, *base.wait(_DOWN_S)]

    @contextmanager
    def _load(self, clients: int, tokens: int, salt: str, requests: int | None = None) -> Iterator[Load]:
        target = Target(url=lambda: self._url, model=self.service.name)
        plan = LoadPlan(target=target, ask=ask(tokens, salt), clients=clients, requests=requests)
        with Load.start(plan) as load:
            yield load

    def _drains(self) -> Drains:
        where = {NAMESPACE: self.service.kubectl.namespace, SERVICE: self.service.name}
        ended = self._operator.metric(f"{Metrics.DRAIN.name}_count", **where)
        aborted = self._operator.metric(Metrics.DRAIN_ABORTED.name, **where)
        return Drains(int(ended or 0), int(aborted or 0))


def _begun(load: Load, swing: Swing) -> bool:
    """Whether every stream of a load has its first token; those that have ended had one."""
    to_go, whole = load.open_requests(), ask(swing.held_tokens, "")
    begun = [tokens < whole(number).max_tokens for number, tokens in to_go.items()]
    return len(begun) + len(load.answers) == swing.held and all(begun)


class Leavers:
    """Asks each pod of a service what it has open as soon as it is seen to leave the Service."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._ending = threading.Event()
        self._asked: dict[str, Future[int | None]] = {}
        self._pool = ThreadPoolExecutor(4)
        self._thread = threading.Thread(target=self._follow, name="leavers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(10)
        self._pool.shutdown()

    def in_flight(self) -> list[int]:
        """For each pod that left and answered, once."""
        found = [future.result() for future in self._asked.values()]
        return [open_requests for open_requests in found if open_requests is not None]

    def _follow(self) -> None:
        looked = 0
        while not self._ending.wait(0.02):
            seen = self._watch.seen
            for each in seen[looked:]:
                self._look(each)
            looked = len(seen)

    def _look(self, seen: Seen) -> None:
        pod = Pod.parse(seen.body)
        if pod.serving:
            self._asked.pop(pod.name, None)  # it came back
        elif pod.name not in self._asked and not pod.terminating and pod.ready:
            self._asked[pod.name] = self._pool.submit(_open_requests, pod)


def _open_requests(pod: Pod) -> int | None:
    try:
        return pod_load(pod).in_flight
    except OSError:
        return None


@contextmanager
def leavers(service: Service) -> Iterator[Leavers]:
    """What pods that leave the service have open, while this is open."""
    selector = ",".join(f"{key}={value}" for key, value in labels.selector(service.name).items())
    with Watch(service.kubectl, "pods", f"--selector={selector}") as watch:
        following = Leavers(watch)
        following.start()
        try:
            yield following
        finally:
            following.stop()
