"""What is in the images: each layer's recipe, keyed by everything that its content depends on."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import cuda_stubs, gpu_code, requirements_lock
from e2e.cluster.binaries import content_key
from e2e.cluster.errors import BoxError

CHECKOUT = Path(__file__).parents[2]
SUITE, PYTHON = "bookworm", (3, 11)
# no shell and no package manager: what a Python program needs to start, and torch's C++ runtime
PACKAGES = (
    "base-files", "netbase", "tzdata", "ca-certificates", "tini", "python3", "python3-minimal",
    "libpython3.11-stdlib", "libc6", "libssl3", "zlib1g", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5",
    "libuuid1", "libexpat1", "libstdc++6", "libgcc-s1",
)  # fmt: skip
UNUSED_FOLDERS = (
    "dev",
    "var/lib/apt",
    "var/lib/dpkg",
    "var/cache",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\npagefleet:x:65532:65532:pagefleet:/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\npagefleet:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
# torch loads none of these on a CPU, and they are six times the rest
GPU_DISTRIBUTIONS = ("nvidia-", "cuda-", "triton", "sympy", "mpmath", "networkx", "setuptools")
UNUSED_TORCH = ("torch/include", "torch/bin/protoc", "torch/bin/protoc-3.13.0.0")


class Recipe(NamedTuple):
    """One layer: its key, where its tree goes, and how to make the tree in an empty folder."""

    name: str
    key: str
    target: str
    make: Callable[[Path], None]


def base(more: Sequence[str] = ()) -> Recipe:
    """Python and nothing else, but for the packages in `more`."""
    packages = (*PACKAGES, *more)
    key = content_key({name: text.encode() for name, text in ACCOUNTS.items()}, SUITE, *packages, *UNUSED_FOLDERS)
    return Recipe("base", key, "", lambda tree: _make_base(packages, tree))


def _make_base(packages: Sequence[str], tree: Path) -> None:
    include = f"--include={','.join(packages)}"
    _run(["mmdebstrap", "--quiet", "--variant=extract", include, SUITE, str(tree), *_mirror()])
    for folder in UNUSED_FOLDERS:
        shutil.rmtree(tree / folder, ignore_errors=True)
    for name, text in ACCOUNTS.items():
        (tree / name).write_text(text)


def mirror_in(sources: str) -> str | None:
    """The first package mirror named in apt's configuration, in either of its two formats. Pure."""
    words = (word for line in sources.splitlines() if line.startswith(("deb ", "URIs:")) for word in line.split())
    return next((word for word in words if word.startswith(("http://", "https://"))), None)


def _mirror() -> list[str]:
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    found = mirror_in("\n".join(path.read_text() for path in files if path.is_file()))
    debian = Path("/etc/os-release").exists() and "\nID=debian\n" in Path("/etc/os-release").read_text()
    return [found] if found and debian else []


def control_site() -> Recipe:
    lock = (CHECKOUT / "requirements/control.txt").read_text()

    def make(tree: Path) -> None:
        install(lock, tree)
        compile_tree(tree)
        check_import(tree, "import kopf, kubernetes.aio, aiohttp, pydantic, prometheus_client, typer, rich, yaml")

    return Recipe("control-site", content_key({}, lock, "1"), "app/site", make)


def engine_site() -> Recipe:
    lock = requirements_lock.without((CHECKOUT / "requirements/engine.txt").read_text(), GPU_DISTRIBUTIONS)
    steps = {
        Path(module.__file__ or "").name: Path(module.__file__ or "").read_bytes() for module in (cuda_stubs, gpu_code)
    }
    return Recipe(
        "engine-site", content_key(steps, lock, *UNUSED_TORCH, "1"), "app/site", lambda tree: _make_engine(lock, tree)
    )


def _make_engine(lock: str, tree: Path) -> None:
    install(lock, tree)
    cuda_stubs.install(tree)
    gpu_code.remove(tree)
    for name in UNUSED_TORCH:
        unused = tree / name
        shutil.rmtree(unused) if unused.is_dir() else unused.unlink(missing_ok=True)
    compile_tree(tree)
    check_import(
        tree,
        "import torch, tokenizers, numpy, msgspec; assert not torch.cuda.is_available(); torch.ones(2) @ torch.ones(2)",
    )


def model() -> Recipe:
    lock = (CHECKOUT / "requirements/model.txt").read_text()
    return Recipe("model", content_key({}, lock, "1"), "app/model", lambda tree: install(lock, tree))


def code(name: str, packages: Sequence[Path]) -> Recipe:
    """The checkout's own packages, and the two things that an installed distribution has beside them."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    crds = CHECKOUT / "crds" / "inferenceservices.yaml"
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    metadata = f"{project['name']}-{project['version']}.dist-info/METADATA"
    files = {
        str(Path(package.name, path.relative_to(package))): path for package in packages for path in _sources(package)
    }
    if crds.exists():
        files["pagefleet_api/inferenceservices.yaml"] = crds
    content = {target: path.read_bytes() for target, path in files.items()} | {metadata: about.encode()}

    def make(tree: Path) -> None:
        for target, data in content.items():
            (tree / target).parent.mkdir(parents=True, exist_ok=True)
            (tree / target).write_bytes(data)
        if complaint := compile_tree(tree):
            raise BoxError(f"the code of the {name} image does not compile:\n{complaint}")

    return Recipe(f"{name}-code", content_key(content, "1"), "app/code", make)


def _sources(package: Path) -> list[Path]:
    return [path for path in package.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]


def pause(binaries: Path) -> Recipe:
    program = binaries / "pause"
    return Recipe("pause", content_key({"pause": program.read_bytes()}), "", lambda tree: _copy(program, tree))


def _copy(file: Path, tree: Path) -> None:
    shutil.copy(file, tree)


def install(lock: str, tree: Path) -> None:
    """Copies, never links: what is done to these files later must not reach uv's cache."""
    if sys.version_info[:2] != PYTHON:
        raise BoxError(f"the images hold Python {PYTHON[0]}.{PYTHON[1]}: run this with the same version")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is None:
        raise BoxError("uv is missing: run `make setup`")
    requirements = tree.with_suffix(".txt")
    requirements.write_text(lock)
    options = ["--quiet", "--no-deps", "--require-hashes", "--link-mode=copy", f"--python={sys.executable}"]
    _run([uv, "pip", "install", *options, f"--target={tree}", f"--requirement={requirements}"])


def compile_tree(tree: Path) -> str:
    """The container cannot write bytecode, so it is shipped; unchecked, as a layer has no usable times.

    What does not compile, in the compiler's words: others' packages bring files for a newer Python.
    """
    command = [sys.executable, "-m", "compileall", "-q", "-j0", "--invalidation-mode=unchecked-hash", str(tree)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def check_import(tree: Path, statement: str) -> None:
    """Runs it with the tree's packages alone: neither this environment's nor the user's are on the path."""
    _run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(tree)!r}); {statement}"])


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        words = (result.stderr + result.stdout)[-3000:]
        raise BoxError(f"{' '.join(command)[:300]} failed:\n{words}")
