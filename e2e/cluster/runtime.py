"""containerd as `ctr` on the host reaches it, through a socket."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from e2e.cluster import node_init, oci
from e2e.cluster.errors import BoxError


def parse_listing(text: str) -> dict[str, str]:
    """The manifest's digest (hex) of each name, from the output of `ctr images list`."""
    rows = (line.split() for line in text.splitlines()[1:])
    return {row[0]: row[2].removeprefix("sha256:") for row in rows if len(row) > 2}


def stale_names(listing: Mapping[str, str]) -> list[str]:
    """The names that the runtime made itself (`sha256:…`) for images that no longer bear any other. Pure."""
    named = {digest for name, digest in listing.items() if not name.startswith("sha256:")}
    return sorted(name for name, digest in listing.items() if digest not in named)


def wait_until_answers(socket: Path, timeout_s: float, alive: Callable[[], bool]) -> bool:
    """Whether somebody listens on the socket in time; whoever is not `alive` any more is not waited for."""
    deadline_s = time.monotonic() + timeout_s
    while not node_init.answers(str(socket)):
        if not alive() or time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


class Runtime:
    """One containerd; `owner` is who it belongs to, for messages."""

    def __init__(self, owner: str, socket: Path) -> None:
        self._owner = owner
        self._ctr = ["ctr", f"--address={socket}", "--namespace=k8s.io"]

    def call(self, *arguments: str) -> str:
        """The output of `ctr`; BoxError with its words when it fails."""
        result = subprocess.run([*self._ctr, *arguments], capture_output=True, text=True, check=False)
        if result.returncode:
            raise BoxError(f"{self._owner}: ctr {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def listing(self) -> dict[str, str]:
        return parse_listing(self.call("images", "list"))

    def load(self, new: Sequence[oci.Image], blobs: Path, present: Collection[str] = ()) -> None:
        """Import and unpack the images; of the blobs named in `present` nothing is sent."""
        command = [*self._ctr, "images", "import", "-"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdin is not None  # by PIPE
            with contextlib.suppress(BrokenPipeError):  # its own words say more
                oci.write_archive(process.stdin, new, blobs, present)
            words = process.communicate()[0].decode(errors="replace")
        if process.returncode:
            raise BoxError(f"{self._owner} refuses {', '.join(image.name for image in new)}: {words.strip()}")
