"""The way of the built images into a running node: only the blobs that it lacks are sent."""

import contextlib
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from e2e.cluster import images, node, node_init, oci
from e2e.cluster.configuration import CONTAINERD_SOCKET
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import Folders, NodeLayout
from e2e.cluster.processes import Processes


def parse_listing(text: str) -> dict[str, str]:
    """The manifest's digest (hex) of each name, from the output of `ctr images list`."""
    rows = (line.split() for line in text.splitlines()[1:])
    return {row[0]: row[2].removeprefix("sha256:") for row in rows if len(row) > 2}


def stale_names(listing: Mapping[str, str]) -> list[str]:
    """The names that the runtime made itself (`sha256:…`) for images that no longer bear any other. Pure."""
    named = {digest for name, digest in listing.items() if not name.startswith("sha256:")}
    return sorted(name for name, digest in listing.items() if digest not in named)


def outdated(wanted: Sequence[oci.Image], listing: Mapping[str, str]) -> list[oci.Image]:
    return [image for image in wanted if listing.get(image.name) != image.manifest_digest]


def load(target: NodeLayout, folders: Folders, processes: Processes) -> list[str]:
    """Brings every image of the checkout into the node, through its runtime's socket; the names of the new ones.

    Raises:
        BoxError: the node is down, or its runtime refuses an image.
    """
    ctr = _Runtime(target, processes)
    new = outdated(images.built(folders.root.parent), ctr.listing())
    if not new:
        return []
    store = folders.node(target.name) / "containerd" / "io.containerd.content.v1.content" / "blobs" / "sha256"
    ctr.load(new, present=[path.name for path in store.glob("*")])
    for name in stale_names(ctr.listing()):
        ctr.call("images", "remove", name)
    return [image.name for image in new]


class _Runtime:
    """containerd of one node, as `ctr` on the host reaches it."""

    def __init__(self, target: NodeLayout, processes: Processes) -> None:
        pid = node.init_pid(target, processes)
        if pid is None:
            raise BoxError(f"{target.name} is down:\n{node.explain(target, processes)}")
        self._name = target.name
        self._socket = Path(f"/proc/{pid}/root{CONTAINERD_SOCKET}")
        self._ctr = ["ctr", f"--address={self._socket}", "--namespace=k8s.io"]
        node_init.wait_for_socket(str(self._socket), 60)

    def call(self, *arguments: str) -> str:
        result = subprocess.run([*self._ctr, *arguments], capture_output=True, text=True, check=False)
        if result.returncode:
            raise BoxError(f"{self._name}: ctr {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def listing(self) -> dict[str, str]:
        return parse_listing(self.call("images", "list"))

    def load(self, new: Sequence[oci.Image], present: Collection[str]) -> None:
        command = [*self._ctr, "images", "import", "-"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
            with contextlib.suppress(BrokenPipeError):  # its own words say more
                oci.write_archive(process.stdin, new, images.blobs_folder(), present)
            words = process.communicate()[0].decode(errors="replace")
        if process.returncode:
            raise BoxError(f"{self._name} refuses {', '.join(image.name for image in new)}: {words.strip()}")
