"""How Prometheus finds the pods, and gives their series the labels that the dashboards ask for. Pure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagefleet_api import labels
from pagefleet_api.metrics import NAMESPACE, SERVICE

POD = "pod"
ENGINES_JOB = "pagefleet-engines"
OPERATOR_JOB = "pagefleet-operator"
OPERATOR_PORT_NAME = "http"
SELECTORS = {
    ENGINES_JOB: f"{labels.MANAGED_BY}={labels.FIELD_MANAGER}",
    OPERATOR_JOB: "app.kubernetes.io/part-of=pagefleet,app.kubernetes.io/component=operator",
}
"""The pods of each job; the operator's labels are the chart's."""
META = "__meta_kubernetes_"

_SCRAPE_TIMEOUT_MAX_S = 10.0

Discovery = Callable[[str], dict[str, Any]]
"""A job's name → the part of its configuration that finds the pods."""


def scrape_config(kubeconfig: Path | None, scrape_interval_s: float) -> dict[str, Any]:
    """A whole Prometheus configuration that scrapes every engine pod and the operator.

    kubeconfig: how Prometheus reaches the API server; None when it runs in the cluster with a ServiceAccount that
    may get, list and watch pods. Drained pods are counted to their last request only when `scrape_interval_s` is
    at most 2.
    """
    access = {} if kubeconfig is None else {"kubeconfig_file": str(kubeconfig)}

    def watched(job: str) -> dict[str, Any]:
        selectors = [{"role": "pod", "label": SELECTORS[job]}]
        return {"kubernetes_sd_configs": [{"role": "pod", "selectors": selectors, **access}]}

    return _configuration(watched, scrape_interval_s)


def file_scrape_config(folder: Path, scrape_interval_s: float) -> dict[str, Any]:
    """The same for a Prometheus without Kubernetes discovery, as Debian's: targets come from files in `folder`,
    which `python -m dashboards.discovery` keeps."""

    def listed(job: str) -> dict[str, Any]:
        return {"file_sd_configs": [{"files": [str(folder / targets_file(job))], "refresh_interval": "10s"}]}

    return _configuration(listed, scrape_interval_s)


def targets_file(job: str) -> str:
    """The name of a job's file of targets."""
    return f"{job}.json"


def meta_label(name: str) -> str:
    """The meta label in which Kubernetes discovery keeps a pod's label."""
    return f"{META}pod_label_" + "".join(character if character.isalnum() else "_" for character in name)


def _configuration(discovery: Discovery, scrape_interval_s: float) -> dict[str, Any]:
    interval = f"{round(scrape_interval_s * 1000)}ms"
    timeout = f"{round(min(scrape_interval_s, _SCRAPE_TIMEOUT_MAX_S) * 1000)}ms"
    engines = [
        *_running(labels.ADMIN_PORT_NAME),
        _copy(f"{META}namespace", NAMESPACE),
        _copy(meta_label(labels.SERVICE), SERVICE),
        _copy(f"{META}pod_name", POD),
    ]
    operator = [*_running(OPERATOR_PORT_NAME), _copy(f"{META}pod_name", POD)]
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": timeout, "evaluation_interval": interval},
        "scrape_configs": [
            {"job_name": job, **discovery(job), "relabel_configs": rules}
            for job, rules in ((ENGINES_JOB, engines), (OPERATOR_JOB, operator))
        ],
    }


def _running(port_name: str) -> list[dict[str, Any]]:
    """One target a pod: the named port, while the pod runs, ready or not."""
    return [
        {"source_labels": [f"{META}pod_container_port_name"], "regex": port_name, "action": "keep"},
        {"source_labels": [f"{META}pod_phase"], "regex": "Running", "action": "keep"},
    ]


def _copy(source: str, target: str) -> dict[str, Any]:
    return {"source_labels": [source], "target_label": target}
