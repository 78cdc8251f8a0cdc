"""The way of the built images into a node: a seed before it starts, then only the blobs that it lacks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster import images, node, node_init, oci, seed
from e2e.cluster.configuration import CONTAINERD_SOCKET
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import Folders, NodeLayout
from e2e.cluster.processes import Processes
from e2e.cluster.runtime import Runtime, stale_names


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


def load(target: NodeLayout, folders: Folders, processes: Processes) -> list[str]:
    """Brings every image of the checkout into the running node; the names of those that it lacked.

    Raises:
        BoxError: the node is down, or its runtime refuses an image.
    """
    pid = node.init_pid(target, processes)
    if pid is None:
        raise BoxError(f"{target.name} is down:\n{node.explain(target, processes)}")
    socket = Path(f"/proc/{pid}/root{CONTAINERD_SOCKET}")
    try:
        node_init.wait_for_socket(str(socket), 60)
    except OSError as error:
        raise BoxError(f"{target.name} does not start:\n{node.explain(target, processes)}") from error
    runtime = Runtime(target.name, socket)
    listing = runtime.listing()
    new = outdated(images.built(folders.root.parent), listing)
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
