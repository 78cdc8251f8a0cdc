"""How pods become targets, and what Prometheus's own checker says of the configuration."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards import prometheus
from dashboards.discovery import main, target_groups, write
from pagefleet_api import labels
from pagefleet_api.metrics import NAMESPACE, SERVICE
from tests.dashboards.pods import pod

ENGINE = {labels.MANAGED_BY: labels.FIELD_MANAGER, labels.SERVICE: "llama"}
PORTS = {"http": 8000, "admin": 8001}


def test_a_pod_gives_one_target_for_each_port_with_the_meta_labels_of_kubernetes_discovery() -> None:
    first, second = target_groups([pod("team", "llama-1", "10.0.0.7", PORTS, ENGINE)])
    assert first["targets"] == ["10.0.0.7:8000"]
    assert second == {
        "targets": ["10.0.0.7:8001"],
        "labels": {
            "__meta_kubernetes_namespace": "team",
            "__meta_kubernetes_pod_name": "llama-1",
            "__meta_kubernetes_pod_phase": "Running",
            "__meta_kubernetes_pod_container_port_name": "admin",
            "__meta_kubernetes_pod_label_app_kubernetes_io_managed_by": "pagefleet",
            "__meta_kubernetes_pod_label_pagefleet_io_service": "llama",
        },
    }


@pytest.mark.parametrize(
    ("address", "targets"),
    [("10.0.0.7", ["10.0.0.7:8001"]), ("fd00::7", ["[fd00::7]:8001"]), (None, []), ("", [])],
)
def test_only_a_pod_with_an_address_is_a_target(address: str | None, targets: list[str]) -> None:
    groups = target_groups([pod("team", "a", address, {"admin": 8001}, ENGINE)])
    assert [target for group in groups for target in group["targets"]] == targets


def test_a_port_that_is_not_tcp_is_no_target() -> None:
    odd = pod("team", "a", "10.0.0.7", {"admin": 8001}, ENGINE)
    odd["spec"]["containers"][0]["ports"][0]["protocol"] = "UDP"
    odd["spec"]["containers"].append({"name": "sidecar"})
    assert target_groups([odd]) == []


def test_the_order_of_the_api_server_does_not_change_the_file() -> None:
    pods = [pod("team", name, "10.0.0.7", PORTS, ENGINE) for name in ("b", "a")]
    assert target_groups(pods) == target_groups(pods[::-1])


def test_an_unchanged_file_is_left_alone(tmp_path: Path) -> None:
    groups = target_groups([pod("team", "a", "10.0.0.7", PORTS, ENGINE)])
    write(tmp_path, prometheus.ENGINES_JOB, groups)
    path = tmp_path / prometheus.targets_file(prometheus.ENGINES_JOB)
    written_ns = path.stat().st_mtime_ns
    write(tmp_path, prometheus.ENGINES_JOB, groups)
    assert path.stat().st_mtime_ns == written_ns
    write(tmp_path, prometheus.ENGINES_JOB, [])
    assert json.loads(path.read_text()) == []
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


def test_both_ways_of_discovery_differ_in_nothing_else(tmp_path: Path) -> None:
    watched = prometheus.scrape_config(tmp_path / "kubeconfig", 2)
    listed = prometheus.file_scrape_config(tmp_path, 2)
    for configuration in (watched, listed):
        for job in configuration["scrape_configs"]:
            del job["kubernetes_sd_configs" if "kubernetes_sd_configs" in job else "file_sd_configs"]
    assert watched == listed


@pytest.mark.parametrize(("kubeconfig", "access"), [(None, {}), (Path("/etc/box"), {"kubeconfig_file": "/etc/box"})])
def test_kubernetes_discovery_asks_for_our_pods_alone(kubeconfig: Path | None, access: dict[str, str]) -> None:
    engines, operator = prometheus.scrape_config(kubeconfig, 15)["scrape_configs"]
    for job, label in (
        (engines, "app.kubernetes.io/managed-by=pagefleet"),
        (operator, "app.kubernetes.io/part-of=pagefleet,app.kubernetes.io/component=operator"),
    ):
        selectors = [{"role": "pod", "label": label}]
        assert job["kubernetes_sd_configs"] == [{"role": "pod", "selectors": selectors, **access}]


@pytest.mark.parametrize(("interval_s", "interval", "timeout"), [(0.5, "500ms", "500ms"), (15, "15000ms", "10000ms")])
def test_a_scrape_never_takes_longer_than_the_time_between_two(interval_s: float, interval: str, timeout: str) -> None:
    scraping = prometheus.scrape_config(None, interval_s)["global"]
    assert (scraping["scrape_interval"], scraping["scrape_timeout"]) == (interval, timeout)


def _relabelled(rules: list[dict[str, Any]], found: dict[str, str]) -> dict[str, str] | None:
    """What Prometheus makes of a target's labels by rules of `keep` and plain copies."""
    made: dict[str, str] = {}
    for rule in rules:
        (source,) = rule["source_labels"]
        if rule.get("action") == "keep":
            if found.get(source) != rule["regex"]:
                return None
        else:
            made[rule["target_label"]] = found.get(source, "")
    return made


@pytest.mark.parametrize(
    ("phase", "port", "expected"),
    [
        ("Running", "admin", {NAMESPACE: "team", SERVICE: "llama", "pod": "llama-1"}),
        ("Running", "http", None),
        ("Succeeded", "admin", None),
    ],
)
def test_an_engine_is_scraped_on_its_admin_port_with_the_service_it_belongs_to(
    phase: str, port: str, expected: dict[str, str] | None
) -> None:
    engines, _ = prometheus.scrape_config(None, 2)["scrape_configs"]
    (group,) = target_groups([pod("team", "llama-1", "10.0.0.7", {port: 8001}, ENGINE, phase)])
    assert _relabelled(engines["relabel_configs"], group["labels"]) == expected


@pytest.mark.apiserver
def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    for job in prometheus.SELECTORS:
        write(tmp_path, job, target_groups([pod("team", "a", "10.0.0.7", PORTS, ENGINE)]))
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(prometheus.file_scrape_config(tmp_path, 2)))
    result = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stdout + result.stderr


class _Answer:
    def __init__(self, pods: list[dict[str, Any]]) -> None:
        self.data = json.dumps({"items": pods})


def test_a_failed_poll_leaves_the_targets_and_a_signal_ends_the_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    polls: list[str] = []

    class Api:
        def __init__(self, _: object) -> None:
            """Needs no connection."""

        def list_pod_for_all_namespaces(self, *, label_selector: str, **_: object) -> _Answer:
            polls.append(label_selector)
            if len(polls) == 2 * len(prometheus.SELECTORS):
                os.kill(os.getpid(), signal.SIGTERM)
            if len(polls) > len(prometheus.SELECTORS):
                raise ConnectionError("the API server is away")
            return _Answer([pod("team", "a", "10.0.0.7", {"admin": 8001}, ENGINE)])

    monkeypatch.setattr("dashboards.discovery.client.CoreV1Api", Api)
    monkeypatch.setattr("dashboards.discovery.config.new_client_from_config", lambda _: None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        main(["--kubeconfig=x", f"--folder={tmp_path / 'targets'}", "--interval-s=0.01"])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert polls == [*prometheus.SELECTORS.values()] * 2
    for job in prometheus.SELECTORS:
        (group,) = json.loads((tmp_path / "targets" / prometheus.targets_file(job)).read_text())
        assert group["targets"] == ["10.0.0.7:8001"]
    assert f"{prometheus.ENGINES_JOB}: the API server is away" in capsys.readouterr().out
