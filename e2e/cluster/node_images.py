"""The way of the built images into a node: a seed before it starts, then only the blobs that it lacks."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster import images, node, node_init, oci, seed
from e2e.cluster.configuration import CONTAINERD_SOCKET
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import Folders, NodeLayout
from e2e.cluster.processes import Processes
from e2e.cluster.runtime import Runtime, stale_names, wait_until_answers

ATTEMPTS = 3
DEADLINE_S = 60.0


def outdated(wanted: Sequence[oci.Image], listing: Mapping[str, str]) -> list[oci.Image]:
    """The images that a runtime with this listing has not, or has in another version. Pure."""
    return [image for image in wanted if listing.get(image.name) != image.manifest_digest]


def _store(target: NodeLayout, folders: Folders) -> Path:
    return folders.node(target.name) / "containerd"


def plant(target: NodeLayout, folders: Folders) -> None:
    """Gives a node that never ran most of what it will need."""
    root = _store(target, folders)
    root.parent.mkdir(parents=True, exist_ok=True)
    seed.plant(images.built(folders.root.parent), root)


def load(
    target: NodeLayout, folders: Folders, processes: Processes, wanted: Sequence[oci.Image] | None = None
) -> list[str]:
    """Brings these images (default: every one of the checkout) into the running node; the names of those it lacked.

    A runtime that ended meanwhile is started again by its node: then what failed is tried again.

    Raises:
        BoxError: the node is down, or its runtime refuses an image; the text ends with the node's last words.
    """
    wanted = images.built(folders.root.parent) if wanted is None else wanted
    deadline_s = time.monotonic() + DEADLINE_S
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _load(target, folders, processes, wanted)
        except BoxError as error:
            ended = not processes.running(target.name)
            if ended or attempt == ATTEMPTS or time.monotonic() > deadline_s:
                words = f"{error}{' (the node has ended)' if ended else ''}"
                raise BoxError(f"{words}\n{node.explain(target, processes)}") from error
            time.sleep(node_init.PATIENCE.pause_s)
    raise AssertionError("the last attempt returns or raises")


def _load(target: NodeLayout, folders: Folders, processes: Processes, wanted: Sequence[oci.Image]) -> list[str]:
    runtime = _runtime(target, processes)
    listing = runtime.listing()
    new = outdated(wanted, listing)
    if new:
        for image in new:
            if image.name in listing:
                # a name keeps the layers that both versions share: the import takes the old version's away, and
                # the garbage collector could then be faster than the unpacking of the new one
                runtime.call("images", "tag", "--force", image.name, f"{image.name.rpartition(':')[0]}:previous")
        content = _store(target, folders) / "io.containerd.content.v1.content" / "blobs" / "sha256"
        runtime.load(new, images.blobs_folder(), present={path.name for path in content.glob("*")})
        for name in stale_names(runtime.listing()):
            runtime.call("images", "remove", name)
    return [image.name for image in new]


def _runtime(target: NodeLayout, processes: Processes) -> Runtime:
    pid = node.init_pid(target, processes)
    if pid is None:
        raise BoxError(f"{target.name} is down")
    socket = Path(f"/proc/{pid}/root{CONTAINERD_SOCKET}")
    if not wait_until_answers(socket, DEADLINE_S, lambda: processes.running(target.name) is not None):
        raise BoxError(f"{target.name}: containerd does not answer")
    return Runtime(target.name, socket)
