"""A third node for a story that takes it away: only the pods that ask for it are placed on it."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from e2e.sites import BoxSite

NAME = "node3"
_TAINT = "story.pagefleet.io/spare"


@contextlib.contextmanager
def running(place: BoxSite) -> Iterator[str]:
    """Its name, while it is there."""
    # known with its taint before its kubelet comes, so that no pod is faster
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NAME},
        "spec": {"taints": [{"key": _TAINT, "effect": "NoSchedule"}]},
    }
    _end(place)
    place.kubectl.apply(json.dumps(node))
    try:
        place.box.start_node(NAME)
        yield NAME
    finally:
        _end(place)


def _end(place: BoxSite) -> None:
    place.box.kill_node(NAME)
    place.kubectl.run("delete", "node", NAME, "--ignore-not-found")


def preferred(selector: Mapping[str, str]) -> dict[str, Any]:
    """A pod's spec: one of the pods with the labels `selector` goes to the spare node, and no two to the same node."""
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]}
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(selector)}}
    return {
        "tolerations": [{"key": _TAINT, "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": here}]},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
        },
    }
