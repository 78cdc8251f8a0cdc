"""A fleet of fake /metrics servers, and a real Prometheus that scrapes them."""

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dashboards.discovery import target_groups, write
from dashboards.prometheus import ENGINES_JOB, OPERATOR_JOB, file_scrape_config
from pagefleet_api import labels
from pagefleet_api.metrics import CONTENT_TYPE, MODEL, NAMESPACE, SERVICE, Kind, Metric
from tests.dashboards.pods import pod

SCRAPE_S = 0.2
KINDS = {Kind.GAUGE: Gauge, Kind.COUNTER: Counter, Kind.HISTOGRAM: Histogram}
KNOWN_VALUES = {
    MODEL: ("m",),
    NAMESPACE: ("team",),
    SERVICE: ("llama",),
    "outcome": ("stop", "length", "abort", "error"),
    "state": ("ready", "failed"),
    "hit": ("true", "false"),
}


class Process:
    """One life of a container: every family of the contract, its labels filled, all at 0."""

    def __init__(self, families: tuple[Metric, ...]) -> None:
        self.registry = CollectorRegistry()
        self._families = {family.name: self._registered(family) for family in families}
        for family in families:
            for values in _combinations(family.labels):
                self._child(family, values)

    def _registered(self, family: Metric) -> Any:
        buckets = {"buckets": family.buckets} if family.buckets else {}
        return KINDS[family.kind](family.name, family.help, family.labels, registry=self.registry, **buckets)

    def _child(self, family: Metric, values: Mapping[str, str]) -> Any:
        metric = self._families[family.name]
        return metric.labels(**values) if values else metric

    def add(self, family: Metric, amount: float, **chosen: str) -> None:
        """Count, observe or set; labels that are not given take their first known value."""
        values = {**_combinations(family.labels)[0], **chosen}
        child = self._child(family, values)
        if family.kind is Kind.COUNTER:
            child.inc(amount)
        elif family.kind is Kind.GAUGE:
            child.set(amount)
        else:
            child.observe(amount)


def _combinations(names: tuple[str, ...]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = [{}]
    for name in names:
        found = [{**one, name: value} for one in found for value in KNOWN_VALUES.get(name, ("x",))]
    return found


class FakePod:
    """A /metrics server on a port of its own; `process` is replaced when its container restarts."""

    def __init__(self, name: str, families: tuple[Metric, ...]) -> None:
        self.name, self.families, self.failing = name, families, False
        self.process = Process(families)
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = generate_latest(fake.process.registry)
                self.send_response(500 if fake.failing else 200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def restart_container(self) -> None:
        """Every counter is 0 again, under the same name and address."""
        self.process = Process(self.families)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Prometheus:
    """The real Prometheus over fake pods, which it finds by our own discovery files."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self._log = (folder / "log").open("w")
        configuration = folder / "prometheus.yml"
        configuration.write_text(yaml.safe_dump(file_scrape_config(folder, SCRAPE_S)))
        self.scrape([], None)
        command = [
            "prometheus",
            f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._process = subprocess.Popen(command, stderr=self._log, stdout=self._log)

    def scrape(self, engines: list[FakePod], operator: FakePod | None) -> None:
        """From now on these are the pods."""
        ours = {labels.MANAGED_BY: labels.FIELD_MANAGER, labels.SERVICE: "llama"}
        pods = [pod("team", fake.name, "127.0.0.1", {labels.ADMIN_PORT_NAME: fake.port}, ours) for fake in engines]
        write(self.folder, ENGINES_JOB, target_groups(pods))
        operators = [pod("system", "operator", "127.0.0.1", {"http": operator.port}, {})] if operator else []
        write(self.folder, OPERATOR_JOB, target_groups(operators))

    def query(self, expr: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """The vector that `expr` is, now or at a Unix time. Raises HTTPError when Prometheus refuses it."""
        asked = urllib.parse.urlencode({"query": expr, **({} if at_s is None else {"time": f"{at_s:.3f}"})})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}", timeout=10) as answer:
            vector: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return vector

    def value(self, expr: str, at_s: float | None = None) -> float | None:
        """The one number that `expr` is; None when it is nothing."""
        vector = self.query(expr, at_s)
        return float(vector[0]["value"][1]) if vector else None

    def wait_until(self, met: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self._asked(met):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what}; Prometheus said:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def _asked(self, met: Callable[[], bool]) -> bool:
        try:
            return met()
        except OSError:
            return False

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
