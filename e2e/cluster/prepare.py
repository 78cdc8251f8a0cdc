"""Everything that a box needs and that can be made beforehand: Debian packages, Go binaries, images."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.cluster import images
from e2e.cluster.binaries import build_binaries, cache_folder, cached_binaries
from e2e.cluster.errors import BoxError
from e2e.cluster.progress import Progress

# what is looked for, and the Debian package that has it
PACKAGES = {
    "runc": "runc",
    "containerd": "containerd",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "mmdebstrap": "mmdebstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "socat": "socat",
    "ip": "iproute2",
    "ipset": "ipset",
    "openssl": "openssl",
    "unshare": "util-linux",
    "gcc": "gcc",
    "readelf": "binutils",
    # for the demo and the tests of the dashboards
    "prometheus": "prometheus",
}


FIRST_TIME_BYTES = 8 << 30
"""Of binaries, images and Go's caches, with a little to spare."""


def missing(wanted: Mapping[str, str]) -> list[str]:
    """The packages whose program or file is not on this machine."""
    return sorted(
        package for thing, package in wanted.items() if shutil.which(thing) is None and not Path(thing).exists()
    )


def install_packages(wanted: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """One call of apt-get for whatever is missing; BoxError that names it when that is not possible."""
    packages = missing(wanted)
    if not packages:
        return
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise BoxError(f"these Debian packages are missing, and there is no apt-get to install them: {names}")
    if os.geteuid() != 0:
        raise BoxError(f"these packages are missing, and only root can install them: apt-get install {names}")
    tell(f"apt-get install {names}")
    options = ["-y", "-q", "-o", "DPkg::Lock::Timeout=600"]
    _apt([*options, "update"], names)
    _apt([*options, "--no-install-recommends", "install", *packages], names)
    if left := missing(wanted):
        raise BoxError(f"apt-get was content, but these are still missing: {' '.join(left)}")


def _apt(arguments: Sequence[str], names: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(["apt-get", *arguments], capture_output=True, text=True, check=False, env=env)
    if result.returncode:
        words = (result.stdout + result.stderr)[-1500:]
        raise BoxError(f"{names} are missing and apt-get could not install them (no network?):\n{words}")


def require_space() -> None:
    """BoxError where what is compiled the first time will not fit: a full disk is not told by all who meet it."""
    with contextlib.suppress(BoxError):
        cached_binaries()
        return
    folder = cache_folder()
    free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
    if free < FIRST_TIME_BYTES:
        raise BoxError(
            f"compiling Kubernetes and building images takes {FIRST_TIME_BYTES >> 30} GB of {folder.parent} the first "
            f"time, and {free / 2**30:.1f} GB are free: make room, or name a folder of a larger disk in XDG_CACHE_HOME"
        )


def prepare(state: Path) -> None:
    """The images are made while the binaries compile; the pause image waits for its binary."""
    require_space()
    with Progress() as progress, ThreadPoolExecutor(2) as pool:
        install_packages(PACKAGES, progress.teller("packages"))
        progress.done("packages", "complete")
        compiling = pool.submit(build_binaries, progress.teller("binaries"))
        building = pool.submit(images.build, state, ("control", "engine"), progress.teller("images"))
        compiling.add_done_callback(lambda future: _report(progress, "binaries", future))
        building.add_done_callback(lambda future: _report(progress, "images", future))
        compiling.result()
        building.result()
        images.build(state, ("pause",), progress.teller("images"))


def _report(progress: Progress, name: str, future: Future[Any]) -> None:
    progress.done(name, "failed" if future.exception() else "ready")


def push(state: Path, registry: str) -> list[str]:
    """Copies the control and the engine image to `registry` (host/path) with skopeo; their new names.

    Credentials are skopeo's own business (`skopeo login`).

    Raises:
        BoxError: no image is built, skopeo cannot be installed, or the registry refuses.
    """
    install_packages({"skopeo": "skopeo"}, print)
    wanted = [image for image in images.built(state) if image.name in {images.CONTROL_IMAGE, images.ENGINE_IMAGE}]
    if not wanted:
        raise BoxError("no image is built: run `python -m e2e.cluster images`")
    names = []
    for image in wanted:
        name = f"{registry.rstrip('/')}/{image.name.removeprefix('localhost/')}"
        source = f"oci:{images.layout_folder(state)}:{image.name}"
        # its digest is how it is referred to afterwards
        options = ["--preserve-digests", f"--src-shared-blob-dir={images.blobs_folder().parent}"]
        if re.match(r"(localhost|127\.0\.0\.1)(:|/)", name):
            options.append("--dest-tls-verify=false")  # a registry on this machine seldom has a certificate
        if subprocess.run(
            ["skopeo", "--insecure-policy", "copy", *options, source, f"docker://{name}"], check=False
        ).returncode:
            raise BoxError(f"skopeo could not copy to {name}")
        names.append(name)
    return names
