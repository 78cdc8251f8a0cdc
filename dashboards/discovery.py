"""Pods as Prometheus targets, for a Prometheus that is built without Kubernetes discovery (Debian's is).

`python -m dashboards.discovery --kubeconfig FILE --folder DIR` keeps one file a job in `DIR`. The targets carry the
meta labels of Kubernetes discovery, so the relabelling is the same either way.
Source: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#pod
"""

import argparse
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubernetes import client, config

from dashboards.prometheus import META, SELECTORS, meta_label, targets_file

Pod = Mapping[str, Any]


def target_groups(pods: Sequence[Pod]) -> list[dict[str, Any]]:
    """One group for each declared TCP port of each pod that has an address, as file discovery reads them. Pure."""
    return [group for pod in sorted(pods, key=_key) for group in _groups(pod)]


def _key(pod: Pod) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _groups(pod: Pod) -> Iterator[dict[str, Any]]:
    address = pod.get("status", {}).get("podIP")
    if not address:
        return
    meta = pod["metadata"]
    common = {f"{META}namespace": meta["namespace"], f"{META}pod_name": meta["name"]}
    common[f"{META}pod_phase"] = pod["status"].get("phase", "")
    common |= {meta_label(name): value for name, value in meta.get("labels", {}).items()}
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", ()):
            if port.get("protocol", "TCP") == "TCP":
                name = {f"{META}pod_container_port_name": port.get("name", "")}
                host = f"[{address}]" if ":" in address else address
                yield {"targets": [f"{host}:{port['containerPort']}"], "labels": common | name}


def write(folder: Path, job: str, groups: list[dict[str, Any]]) -> None:
    """Replace a job's file in one step, and only when it changes; Prometheus watches it."""
    path = folder / targets_file(job)
    text = json.dumps(groups, indent=1, sort_keys=True)
    if path.exists() and path.read_text() == text:
        return
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Poll the API server until SIGTERM or SIGINT. A failed poll leaves the files as they are."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.discovery", description=__doc__.split("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True, help="how the API server is reached")
    parser.add_argument("--folder", type=Path, required=True, help="where the files of targets are kept")
    parser.add_argument("--interval-s", type=float, default=1.0, help="seconds between polls (default 1)")
    options = parser.parse_args(argv)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    api = client.CoreV1Api(config.new_client_from_config(str(options.kubeconfig)))
    options.folder.mkdir(parents=True, exist_ok=True)
    while not stopped.is_set():
        for job, selector in SELECTORS.items():
            try:
                write(options.folder, job, target_groups(_list(api, selector)))
            except Exception as error:  # whatever it is, the next poll is a second away
                print(f"{job}: {error}", flush=True)
        stopped.wait(options.interval_s)


def _list(api: client.CoreV1Api, selector: str) -> list[Pod]:
    answer = api.list_pod_for_all_namespaces(
        label_selector=selector, resource_version="0", _request_timeout=5, _preload_content=False
    )
    return list(json.loads(answer.data)["items"])


if __name__ == "__main__":
    main()
