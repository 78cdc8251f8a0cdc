"""The Go binaries of a box: compiled once for each version of their sources, kept in the user's cache."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from e2e.cluster.errors import BoxError
from e2e.cluster.locks import built_once, is_built

SOURCES = Path(__file__).with_name("hyperkube")
PACKAGES = (".", "helm.sh/helm/v3/cmd/helm", "./cmd/coredns", "./cmd/pause")
NAMES = ("hyperkube", "helm", "coredns", "pause")
KUBERNETES_VERSION = "v1.34.4"
PACKAGE_COUNT = 3000  # about; only for the progress line


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "pagefleet")


def build_flags(version: str = KUBERNETES_VERSION) -> tuple[str, ...]:
    """Without the version's stamp the components would call themselves v0.0.0-master, and Helm refuses that."""
    _, minor, _ = version.split(".")
    facts = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    stamps = [f"-X {package}.{name}={value}" for package in packages for name, value in facts.items()]
    return ("-trimpath", "-buildvcs=false", "-ldflags", " ".join(["-s -w", *stamps]))


def content_key(files: Mapping[str, bytes], *facts: str) -> str:
    """A short name for this content: equal files and facts give the same. Pure."""
    digest = hashlib.sha256()
    for part in (
        *facts,
        *(piece for name in sorted(files) for piece in (name, hashlib.sha256(files[name]).hexdigest())),
    ):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:16]


@cache
def _binaries_folder() -> Path:
    wanted = [path for path in SOURCES.rglob("*") if path.suffix in {".go", ".mod", ".sum"}]
    files = {str(path.relative_to(SOURCES)): path.read_bytes() for path in wanted}
    return cache_folder() / "bin" / content_key(files, *build_flags(), _go_version())


def _go_version() -> str:
    if shutil.which("go") is None:
        raise BoxError("Go is missing: install Go 1.24 or later and put it on the PATH")
    return subprocess.run(["go", "version"], capture_output=True, text=True, check=True, env=_environment()).stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}


def cached_binaries() -> Path:
    """The folder of the built binaries; BoxError while there is none."""
    folder = _binaries_folder()
    if not is_built(folder):
        raise BoxError("the cluster's binaries are not built: run `make demo`, or `make cluster`")
    return folder


def build_binaries(tell: Callable[[str], None]) -> Path:
    """Compile them unless they are cached: about six minutes on two idle cores, seconds when Go's cache is warm."""

    def build(folder: Path) -> None:
        go_build([*build_flags(), "-o", f"{folder}/", *PACKAGES], SOURCES, tell)
        (folder / "kubectl").symlink_to("hyperkube")

    return built_once(_binaries_folder(), build)


def go_build(arguments: Sequence[str], folder: Path, tell: Callable[[str], None]) -> None:
    """`go build` in a module's folder; BoxError with its last words when it fails."""
    command = ["go", "build", "-v", *arguments]
    modules, packages = 0, 0
    last: list[str] = []
    with subprocess.Popen(command, cwd=folder, env=_environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # by PIPE
        for line in process.stderr:
            last = [*last[-20:], line]
            if line.startswith("go: downloading"):
                modules += 1
                tell(f"downloading modules ({modules})")
            else:
                packages += 1
                tell(f"compiling and linking: {packages} packages of some {PACKAGE_COUNT}")
    if process.returncode:
        raise BoxError(f"the Go build failed:\n{''.join(last)}")


def go_module(module: str) -> Path:
    """The files of `PATH@VERSION` in Go's own cache; BoxError where they cannot be had."""
    command = ["go", "mod", "download", "-json", module]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=_environment())
    found = json.loads(answer.stdout or "{}")
    if "Dir" not in found:
        raise BoxError(f"{module} cannot be downloaded: {found.get('Error', answer.stderr)}")
    return Path(found["Dir"])
