"""A Prometheus on this machine that scrapes the demo's or the tests' cluster."""

import json
import shutil
import sys
import time
import urllib.error
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dashboards.prometheus import file_scrape_config
from e2e.cluster.prepare import install_packages
from e2e.cluster.processes import Processes
from e2e.service import get_json

ADDRESS = "127.0.0.1:16490"
_NAME, _DISCOVERY = "prometheus", "discovery"


class Sample(NamedTuple):
    """One series of an instant answer."""

    labels: Mapping[str, str]
    value: float


class PrometheusError(Exception):
    """Prometheus cannot be started, or it refuses a query; the text says why."""


class Prometheus:
    """One server with its data and its process record below `folder`, which is absolute."""

    def __init__(self, folder: Path, address: str = ADDRESS) -> None:
        self._folder = folder
        self.url = f"http://{address}"
        self._processes = Processes(folder / "processes", folder / "log")

    def start(self, kubeconfig: Path, scrape_interval_s: float, timeout_s: float = 20) -> None:
        """Start it, or leave it when it runs; install it first where it is missing.

        A process of its own tells it of pods, as Debian's cannot ask the API server.

        Raises:
            BoxError: it is missing and cannot be installed.
            PrometheusError: it is not ready in time; the text ends with its log.
        """
        install_packages({_NAME: "prometheus"}, print)
        targets = self._folder / "targets"
        targets.mkdir(parents=True, exist_ok=True)
        if not self._processes.running(_DISCOVERY):
            words = ["-m", "dashboards.discovery", f"--kubeconfig={kubeconfig}", f"--folder={targets}"]
            self._processes.start(_DISCOVERY, [sys.executable, *words])
        if not self._processes.running(_NAME):
            config = self._folder / "prometheus.yml"
            config.write_text(yaml.safe_dump(file_scrape_config(targets, scrape_interval_s), sort_keys=False))
            data, listen = self._folder / "data", self.url.removeprefix("http://")
            words = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={listen}"]
            self._processes.start(_NAME, [_NAME, *words, "--log.level=warn"])
        self._wait_until_ready(timeout_s)

    def _wait_until_ready(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self._ready():
            if time.monotonic() > deadline_s or not self._processes.running(_NAME):
                raise PrometheusError(f"Prometheus is not ready:\n{self._processes.log_tail(_NAME)}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it and delete its data; without one it does nothing."""
        self._processes.kill(_NAME, _DISCOVERY)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ready(self) -> bool:
        try:
            get_json(f"{self.url}/api/v1/status/buildinfo")
        except OSError:
            return False
        return True

    def query(self, expression: str, at_s: float | None = None) -> list[Sample]:
        """An instant query at a Unix time, default now; a scalar comes as one sample without labels.

        Raises:
            PrometheusError: the query is refused.
        """
        words = {"query": expression} if at_s is None else {"query": expression, "time": f"{at_s:.3f}"}
        data = self._get("query", words)
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(series["metric"], float(series["value"][1])) for series in data["result"]]

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[list[float]]:
        """The values of each series between two Unix times.

        Raises:
            PrometheusError: the query is refused.
        """
        words = {"query": expression, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s}"}
        result = self._get("query_range", words)["result"]
        return [[float(value) for _, value in series["values"]] for series in result]

    def targets(self) -> list[dict[str, Any]]:
        """Its scrape targets, with their labels, health and last error."""
        active: list[dict[str, Any]] = self._get("targets", {"state": "active"})["activeTargets"]
        return active

    def _get(self, what: str, words: Mapping[str, str]) -> Any:
        try:
            return get_json(f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(words)}")["data"]
        except urllib.error.HTTPError as error:
            reason = json.loads(error.read()).get("error", "")
            raise PrometheusError(f"{words.get('query', what)}: {error.code} {reason}") from error
