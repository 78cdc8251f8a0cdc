"""A runtime's store with the images unpacked in it, kept in the cache and planted into each new node by hard links.

Unpacking the engine image takes a node half a minute; linking it takes a second. The store's files are never written
again once they are complete (containers write to snapshots of their own); only its databases are, so those are copied.
The last layer of an image, our own code, is no part of a seed's key: a node is sent it when it has started.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster import arguments, configuration, oci
from e2e.cluster.binaries import cache_folder, content_key
from e2e.cluster.errors import BoxError
from e2e.cluster.locks import locked
from e2e.cluster.runtime import Runtime, wait_until_answers

SEEDS_KEPT = 2


def key(images: Sequence[oci.Image]) -> str:
    """Names what is worth keeping unpacked in `images`. Pure."""
    lasting = {digest for image in images for digest in image.blobs[oci.FIRST_LAYER : -1]}
    return content_key({}, *sorted(lasting))


def _folder() -> Path:
    return cache_folder() / "images" / "seeds"


def make(images: Sequence[oci.Image], blobs: Path, tell: Callable[[str], None]) -> None:
    """Unpack the images into a seed unless there is one for them; without root there will be no nodes either."""
    kept = _folder() / key(images)
    if os.geteuid() != 0 or kept.exists():
        return
    tell("unpacking the images for the nodes")
    with locked(_folder()):
        if kept.exists():  # somebody made it while we waited
            return
        for left in _folder().glob("partial.*"):  # by a build that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=_folder(), prefix="partial.") as work:
            root, state = Path(work, "root"), tempfile.mkdtemp(prefix="ctd.")  # a socket's path must be short
            try:
                _unpack(root, Path(state), images, blobs)
            finally:
                shutil.rmtree(state)
            root.rename(kept)
        for old in sorted(_folder().iterdir(), key=lambda path: path.stat().st_mtime)[:-SEEDS_KEPT]:
            shutil.rmtree(old)


def _unpack(root: Path, state: Path, images: Sequence[oci.Image], blobs: Path) -> None:
    settings = state / "containerd.toml"
    settings.write_text(configuration.unpacking_containerd(root, state))
    command = arguments.private_mounts(["containerd", "--config", str(settings)])
    with (state / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            socket = state / "containerd.sock"
            if not wait_until_answers(socket, 60, lambda: process.poll() is None):
                raise BoxError(f"containerd does not start: {(state / 'log').read_text()[-2000:]}")
            Runtime("the cache", socket).load(images, blobs)
        finally:
            process.kill()


def plant(images: Sequence[oci.Image], root: Path) -> None:
    """Fill a new node's store from the seed for `images`, if there is one on the same file system."""
    kept = _folder() / key(images)
    if root.exists() or not kept.exists() or kept.stat().st_dev != root.parent.stat().st_dev:
        return
    partial = root.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    subprocess.run(["cp", "--archive", "--link", str(kept), str(partial)], check=True)
    for database in partial.rglob("*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.replace(database)
    partial.rename(root)
    os.utime(kept)
