"""`python -m e2e.steady --minutes 10`: how often a cluster is written to in which nothing changes.

A cluster of its own, beside any other that runs: the operator of this checkout in a pod, three services whose pods are
ready, and then nothing. The API server counts every request that it answers; what the operator may write to must show
none but reads. One JSON line; exit status 1 when anything was written.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from e2e import manifests, release
from e2e.cluster.box import Box
from e2e.cluster.layout import STEADY
from e2e.kubectl import Json
from e2e.operator_pods import Operator
from e2e.progress import Progress
from e2e.service import KIND, Service
from e2e.sites import BoxSite, state_folder

_READS = frozenset({"GET", "LIST", "WATCH", "CONNECT"})
_OURS = frozenset(
    {
        "inferenceservices",
        "deployments",
        "services",
        "serviceaccounts",
        "poddisruptionbudgets",
        "pods",
        "jobs",
        "events",
    }
)
"""All that the operator writes to, its Lease excepted, which it renews every two seconds."""
_NOT_OURS = frozenset({"token"})
"""Kubelets ask for the pods' tokens."""
_SETTLE_S = 90.0
"""What follows readiness by itself: conditions, Events, the first decisions, the images' garbage collection."""
_NAMESPACE = "steady"

Counts = Mapping[str, float]


def services() -> list[dict[str, object]]:
    """A fixed one of two pods, an autoscaled one, and one with pods of the user's own."""
    overlay = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [{"name": "engine", "env": [_POD_IP]}]}}
    return [
        manifests.service("fixed", replicas=2),
        manifests.service("scaled", autoscaling={"minReplicas": 1, "maxReplicas": 3, "behavior": _CALM}),
        manifests.service("own", podTemplate=overlay),
    ]


_CALM = {"scaleDown": {"stabilizationWindowSeconds": 30}}
"""Its end is something that happens, so it has to be over before the counting begins."""
_POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def writes(exposition: str) -> Counts:
    """Writes so far by verb and resource, from the API server's own metrics."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name != "apiserver_request_total":
                continue
            verb, resource, part = (sample.labels.get(name, "") for name in ("verb", "resource", "subresource"))
            if verb not in _READS and resource in _OURS and part not in _NOT_OURS:
                name = f"{verb} {resource}{f'/{part}' if part else ''}"
                found[name] = found.get(name, 0.0) + sample.value
    return found


def since(before: Counts, after: Counts) -> Counts:
    """What has been counted between the two."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: value for name, value in grown.items() if value}


def changed(before: Sequence[Json], after: Sequence[Json]) -> dict[str, list[str]]:
    """Fields of the status that differ, by service; a service without any has none."""
    known = {body["metadata"]["name"]: body.get("status", {}) for body in before}
    fields = {
        body["metadata"]["name"]: [
            f"{name}: {known[body['metadata']['name']].get(name)} -> {value}"
            for name, value in body["status"].items()
            if known[body["metadata"]["name"]].get(name) != value
        ]
        for body in after
    }
    return {name: differences for name, differences in fields.items() if differences}


def measure(site: BoxSite, minutes: float, progress: Progress) -> dict[str, object]:
    """Make the services, wait until nothing is left to do, and count."""
    kubectl, operator = site.kubectl.within(_NAMESPACE), Operator(site)
    kubectl.run("create", "namespace", _NAMESPACE)
    with progress.step("services become ready"):
        for manifest in services():
            kubectl.apply(manifests.text(manifest))
        for name, replicas in (("fixed", 2), ("scaled", 1), ("own", 1)):
            Service(kubectl, name).wait_until_ready(replicas, 180)
    with progress.step("what follows readiness ends"):
        time.sleep(_SETTLE_S)
    counted = operator.metric("pagefleet_api_writes_total") or 0.0
    passes = operator.metric("pagefleet_reconcile_seconds_count") or 0.0
    objects = kubectl.items(KIND)
    before = writes(kubectl.run("get", "--raw", "/metrics"))
    with progress.step(f"{minutes:g} minutes in which nothing happens"):
        time.sleep(minutes * 60)
    after = writes(kubectl.run("get", "--raw", "/metrics"))
    return {
        "bench": "steady",
        "minutes": minutes,
        "services": len(services()),
        "passes": (operator.metric("pagefleet_reconcile_seconds_count") or 0.0) - passes,
        "operator_writes": (operator.metric("pagefleet_api_writes_total") or 0.0) - counted,
        "cluster_writes": since(before, after),
        "changed": changed(objects, kubectl.items(KIND)),
    }


def main() -> int:
    """Bring the cluster up, measure, take it down."""
    options = argparse.ArgumentParser(prog="python -m e2e.steady", description=__doc__)
    options.add_argument("--minutes", type=float, default=10.0)
    minutes = options.parse_args().minutes
    state, progress = state_folder() / "steady", Progress(sys.stderr)
    box = Box.at(state, STEADY)
    site = BoxSite(box)
    try:
        release.install(site, site.bring_up_apart(progress))
        result = measure(site, minutes, progress)
    finally:
        box.down()
    print(json.dumps(result))
    return 1 if result["operator_writes"] or result["cluster_writes"] else 0


if __name__ == "__main__":
    sys.exit(main())
