"""Devices on the cluster's nodes that are there for the scheduler alone, as nobody has so many GPUs at home."""

import contextlib
import json
from collections.abc import Iterator, Sequence

from e2e.service import wait_for
from e2e.sites import BoxSite

NODES = ("node1", "node2")


@contextlib.contextmanager
def on_nodes(place: BoxSite, resource: str, count: int, nodes: Sequence[str] = NODES) -> Iterator[None]:
    """So many of an extended resource on each of these nodes, while the context is open."""
    path = f"/status/capacity/{resource.replace('/', '~1')}"

    def patch(operation: str, **value: str) -> None:
        change = json.dumps([{"op": operation, "path": path, **value}])
        for node in nodes:
            place.kubectl.run("patch", "node", node, "--subresource=status", "--type=json", "-p", change)

    def allocatable() -> bool:
        found = [place.kubectl.get("node", node) or {} for node in nodes]
        return all(node["status"]["allocatable"].get(resource) == str(count) for node in found)

    patch("add", value=str(count))
    try:
        wait_for(f"the nodes have {resource}", allocatable, 30)
        yield
    finally:
        patch("remove")
