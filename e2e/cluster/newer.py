"""Programs newer than the usual ones, for what those cannot do: Kubernetes from whose version on pods may mount images
by default, and containerd 2 in place of Debian's. Compiled once.
"""

from collections.abc import Callable
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster.locks import built_once

KUBERNETES_VERSION = "v1.35.4"
CONTAINERD_VERSION = "v2.4.2"
_CONTAINERD = "github.com/containerd/containerd/v2"
_STAMP = f"-s -w -X {_CONTAINERD}/version.Version={CONTAINERD_VERSION}"
_FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags", _STAMP)
_PROGRAMS = tuple(f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2"))


def build(tell: Callable[[str], None]) -> Path:
    """The folder of the programs for a `Box`: some seven minutes on two idle cores unless they are cached.

    Raises:
        BoxError: Go cannot compile them.
    """
    usual = binaries.build_binaries(tell)
    facts = (usual.name, *binaries.build_flags(KUBERNETES_VERSION), CONTAINERD_VERSION, *_FLAGS)
    folder = usual.parent / f"newer-{binaries.content_key({}, *facts)}"
    return built_once(folder, lambda partial: _fill(partial, usual, tell))


def _fill(folder: Path, usual: Path, tell: Callable[[str], None]) -> None:
    _compile(folder, tell)
    for name in ("helm", "coredns", "pause"):
        (folder / name).hardlink_to(usual / name)
    (folder / "kubectl").symlink_to("hyperkube")


def _compile(folder: Path, tell: Callable[[str], None]) -> None:
    """There is no list of their modules' checksums here: Go asks its checksum database for each."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "kubernetes.mod").write_text(newer_modules((binaries.SOURCES / "go.mod").read_text()))
    kubernetes = (f"-modfile={modules / 'kubernetes.mod'}", *binaries.build_flags(KUBERNETES_VERSION))
    binaries.go_build(["-mod=mod", *kubernetes, "-o", f"{folder}/", "."], binaries.SOURCES, tell)
    (modules / "go.mod").write_text(f"module newer\n\ngo 1.26\n\nrequire {_CONTAINERD} {CONTAINERD_VERSION}\n")
    binaries.go_build(["-mod=mod", *_FLAGS, "-o", f"{folder}/", *_PROGRAMS], modules, tell)


def newer_modules(text: str) -> str:
    """The usual `go.mod` with the other version. Kubernetes has its modules at v0 where it is at v1."""
    for major in "01":
        usual, newer = (f"v{major}{version[2:]}" for version in (binaries.KUBERNETES_VERSION, KUBERNETES_VERSION))
        text = text.replace(usual, newer)
    return text
