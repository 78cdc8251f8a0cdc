"""Pods without nodes: a thread plays kubelet and engine for every pod that the real controllers make.

Each pod gets a loopback address of its own, on which a tiny engine answers `/load`, `/drain` and `/undrain` on the
admin port, so the operator under test runs as it is. A pod of vLLM's tells its metrics on its API's port, and no more.
"""

import contextlib
import itertools
import json
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pagefleet_api import labels
from pagefleet_api.metrics import Engine as EngineMetrics
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json

NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu."
_ADDRESSES = itertools.count(1)
_BETWEEN_PODS_S = 0.8
"""Longer than the samples of two pods lie apart on a busy machine: a new pod's first one is of no round of the others,
which are 0.6 s apart."""


class Answers:
    """What an engine measured of its answers, as its `/metrics` tells it."""

    def __init__(self) -> None:
        self._ttft_s: list[float] = []
        self._outcomes = {"stop": 0, "error": 0}

    def add(self, count: int, *, ttft_s: float, failed: bool = False) -> None:
        """So many more."""
        self._ttft_s += [ttft_s] * count
        self._outcomes["error" if failed else "stop"] += count

    def exposition(self) -> bytes:
        """The text."""
        ttft = EngineMetrics.TIME_TO_FIRST_TOKEN
        bounds = [(str(bound), bound) for bound in ttft.buckets] + [("+Inf", float("inf"))]
        lines = [f'{ttft.name}_bucket{{le="{name}"}} {sum(s <= le for s in self._ttft_s)}' for name, le in bounds]
        lines += [f"{ttft.name}_count {len(self._ttft_s)}", f"{ttft.name}_sum {sum(self._ttft_s)}"]
        ended = EngineMetrics.REQUESTS.name
        lines += [f'{ended}{{outcome="{outcome}"}} {count}' for outcome, count in self._outcomes.items()]
        return "\n".join((*lines, "")).encode()


class Engine:
    """One fake engine; a test sets its numbers or its misbehaviour."""

    def __init__(self, address: str, max_num_seqs: int, *, foreign: bool = False) -> None:
        self.address, self.max_num_seqs, self.foreign = address, max_num_seqs, foreign
        self.running = self.waiting = self.blocks_used = 0
        self.draining = self.dead = False
        self.garbage: bytes | None = None
        self.status = 200
        self.told: list[str] = []
        self.answers = Answers()
        self.since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        port = labels.ENGINE_PORT if foreign else labels.ADMIN_PORT
        self._server = ThreadingHTTPServer((address, port), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def in_flight(self) -> int:
        """Requests that it has."""
        return self.running + self.waiting

    def hold(self, requests: int) -> None:
        """So many from now on; those past its seats wait."""
        self.running = min(requests, self.max_num_seqs)
        self.waiting = requests - self.running
        self.blocks_used = self.running * 20

    def load(self) -> bytes:
        """What `/load` answers."""
        if self.garbage is not None:
            return self.garbage
        answer = {
            "state": "draining" if self.draining else "ready",
            "running": self.running,
            "waiting": self.waiting,
            "maxNumSeqs": self.max_num_seqs,
            "blockSize": 16,
            "blocksUsed": self.blocks_used,
            "blocksTotal": 1000,
            "queuedPromptTokens": 0,
            "secondsSinceLastStep": 0.0,
        }
        return json.dumps(answer).encode()

    def metrics(self) -> bytes:
        """What `/metrics` answers."""
        if not self.foreign:
            return self.answers.exposition()
        return (
            f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting {self.waiting}\n"
            f"vllm:kv_cache_usage_perc {self.blocks_used / 1000}\n"
        ).encode()

    def close(self) -> None:
        """The process is gone: kept connections end without an answer, new ones are refused."""
        self.dead = True
        self._server.shutdown()
        self._server.server_close()


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if engine.dead:
                self.close_connection = True
                return
            metrics = self.path == "/metrics"
            known = metrics or not engine.foreign
            self._answer(engine.status if known else 404, engine.metrics() if metrics else engine.load())

        def do_POST(self) -> None:
            if engine.dead:
                self.close_connection = True
                return
            verb = self.path.strip("/")
            engine.told.append(verb)
            engine.draining = verb == "drain" and not engine.foreign
            self._answer(404 if engine.foreign else 200, b"{}")

        def _answer(self, status: int, body: bytes) -> None:
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    return Handler


class Fleet:
    """Kubelet of one namespace. `start_delay_s` is how long a pod takes from its creation to readiness."""

    def __init__(self, api: Api, namespace: str, *, start_delay_s: float = 0.2, max_num_seqs: int = 8) -> None:
        self.engines: dict[str, Engine] = {}
        self.seen: set[str] = set()
        self.deleted: list[str] = []
        self.start_delay_s = start_delay_s
        self.room: int | None = None
        """Pods that find a place; the scheduler has looked in vain for others since long ago."""
        self.crashing = False
        """Engines of new pods have crashed since long ago, again and again, and never served."""
        self.node: str | None = None
        """That pods are bound to. Nobody plays its kubelet when they are deleted, so this is for pods that stay."""
        self._api, self._namespace, self._max_num_seqs = api, namespace, max_num_seqs
        self._born: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for engine in list(self.engines.values()):
            engine.close()

    def pods(self) -> list[Json]:
        """Pods that are not on their way out, by name."""
        pods = self._api.list("pods", self._namespace)
        return sorted((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), key=_name)

    def serving(self) -> list[str]:
        """Names of ready pods that the Service selects."""
        return [_name(pod) for pod in self.pods() if _serves(pod)]

    def set_load(self, *, running: int = 0, waiting: int = 0, blocks_used: int = 0) -> None:
        """The same load on every engine that there is."""
        for engine in list(self.engines.values()):
            engine.running, engine.waiting, engine.blocks_used = running, waiting, blocks_used

    def share(self, clients: int) -> None:
        """A closed loop of so many clients for each service, spread evenly over the pods that serve.

        Requests end in one pod some time before they begin in another: samples of two pods are never of one moment,
        so what moved in between would be counted twice.
        """
        known = [pod for pod in self.pods() if _name(pod) in self.engines]
        pods = [pod for pod in known if _serves(pod)]
        for pod in known:
            if not _serves(pod):
                self.engines[_name(pod)].hold(0)  # what it still had has ended, and its clients ask another
        shares: list[tuple[Engine, int]] = []
        for _, group in itertools.groupby(sorted(pods, key=_service), _service):
            serving = [self.engines[_name(pod)] for pod in group]
            each, rest = divmod(clients, len(serving))
            shares += [(engine, each + (number < rest)) for number, engine in enumerate(serving)]
        growing = [(engine, mine) for engine, mine in shares if mine > engine.in_flight]
        for engine, mine in shares:
            engine.hold(min(mine, engine.in_flight))
        if growing:
            time.sleep(_BETWEEN_PODS_S)
        for engine, mine in growing:
            engine.hold(mine)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            with contextlib.suppress(ApiRefusal, OSError):
                self._tick()

    def _tick(self) -> None:
        pods = {_name(pod): pod for pod in self._api.list("pods", self._namespace)}
        for name in [name for name in self.engines if name not in pods]:
            self.engines.pop(name).close()
            self.deleted.append(name)
        for name, pod in pods.items():
            self.seen.add(name)
            self._tend(name, pod)

    def _tend(self, name: str, pod: Json) -> None:
        born_s = self._born.setdefault(name, time.monotonic())
        if name not in self.engines and time.monotonic() - born_s < self.start_delay_s:
            return
        if name not in self.engines and self.crashing:
            self._crash(name, pod)
            return
        if name not in self.engines and self.room is not None and len(self.engines) >= self.room:
            self._turn_away(name, pod)
            return
        if name not in self.engines:
            number = next(_ADDRESSES)
            address = f"127.7.{number // 250}.{number % 250 + 1}"
            foreign = labels.RUNTIME in pod["metadata"]["labels"]
            self.engines[name] = Engine(address, self._max_num_seqs, foreign=foreign)
            if self.node is not None:
                self._api.bind(self._namespace, name, self.node)
        engine = self.engines[name]
        if pod.get("status", {}).get("podIP") != engine.address or _ready(pod) == engine.draining:
            self._report(name, engine)

    def _turn_away(self, name: str, pod: Json) -> None:
        if not pod.get("status", {}).get("conditions"):
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}
            scheduled["lastTransitionTime"] = "2026-01-01T00:00:00Z"
            self._api.merge("pods", self._namespace, name, {"status": {"conditions": [scheduled]}}, "status")

    def _crash(self, name: str, pod: Json) -> None:
        if not pod.get("status", {}).get("conditions"):
            long_ago = "2026-01-01T00:00:00Z"
            container = {"name": labels.CONTAINER, "image": "fake", "imageID": "fake", "ready": False, "started": False}
            waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
            ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "no such model"}}
            status = {
                "phase": "Running",
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": long_ago},
                    {"type": "Ready", "status": "False", "lastTransitionTime": long_ago},
                ],
                "containerStatuses": [{**container, "restartCount": 5, "state": waits, "lastState": ended}],
            }
            self._api.merge("pods", self._namespace, name, {"status": status}, "status")

    def _report(self, name: str, engine: Engine) -> None:
        ready = "False" if engine.draining else "True"
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {
            "phase": "Running",
            "podIP": engine.address,
            "podIPs": [{"ip": engine.address}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": engine.since},
                {"type": "ContainersReady", "status": ready},
                {"type": "Ready", "status": ready, "lastTransitionTime": since},
            ],
            "containerStatuses": [
                {
                    "name": labels.CONTAINER,
                    "image": "fake",
                    "imageID": "fake",
                    "ready": not engine.draining,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": engine.since}},
                }
            ],
        }
        self._api.merge("pods", self._namespace, name, {"status": status}, "status")


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _serves(pod: Json) -> bool:
    return _ready(pod) and (pod["metadata"].get("labels") or {}).get(labels.SERVING) == labels.SERVING_TRUE


def _service(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(labels.SERVICE))


def _ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
