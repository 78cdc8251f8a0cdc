"""An image of the real vLLM for a CPU, from package registries alone, with a small model of random weights in it.

vLLM's CPU build is made for a torch that registries do not have; the CUDA build takes its place, with libraries that
say "no device" for NVIDIA's (as our own test image does). Of the kernel libraries the one for AVX2 stays, which every
machine here can run, under the names of the others too. Outside of `make test` for its size: 660 MB to download, 1.3 GB
on each node.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster import cuda_stubs, gpu_code, layers, oci, requirements_lock
from e2e.cluster.binaries import content_key
from e2e.cluster.images import PYTHON_ENV, USER, blobs_folder, layer_of
from tests.pagefleet_engine import tiny_model

IMAGE = "localhost/vllm-cpu:test"
MODEL = "/models/tiny"
VERSION = "0.32.0"

_LOCK = layers.CHECKOUT / "requirements" / "vllm.txt"
"""Made by `make locks` from vllm.in: what vLLM's server really imports, of the versions that were tried together."""
_ABOUT = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
"""The command line asks for a distribution of this name, and takes the CPU for its platform by the version's end."""
_UNUSED = (
    "torch/include", "torch/bin/protoc", "torch/bin/protoc-3.13.0.0", "torch/test", "torch/share",
    "vllm/benchmarks/datasets", "vllm/kernels/helion/configs",
)  # fmt: skip
_PACKAGES = (
    *("libnuma1", "dash", "util-linux", "libsmartcols1"),
    *("bash", "coreutils", "libtinfo6", "libacl1", "libattr1", "libgmp10", "libselinux1", "libpcre2-8-0"),
)
"""It asks `lscpu` for its cores, through a shell; a worker waits for its leader by bash."""
_KERNELS, _OTHER_KERNELS = "_C_AVX2.abi3.so", ("_C.abi3.so", "_C_AVX512.abi3.so")
_LAUNCHER = """#!/usr/bin/python3
from vllm.entrypoints.cli.main import main

if __name__ == "__main__":  # its workers import this file
    main()
"""
_SHAPE = tiny_model.TinyShape(
    layers=4, hidden_size=256, heads=4, kv_heads=2, head_size=64, intermediate_size=512, max_positions=8192,
    rope_scaling=False,
)  # fmt: skip


def build(tell: Callable[[str], None]) -> oci.Image:
    """The image in the store of blobs; layers that were built before are taken from the cache."""
    stack = [layer_of(recipe, tell) for recipe in _recipes()]
    program = oci.Program(("/usr/bin/vllm",), USER, {**PYTHON_ENV, "PYTHONPATH": "/app/site", "OMP_NUM_THREADS": "1"})
    return oci.write_image(blobs_folder(), IMAGE, stack, program)


def _recipes() -> Sequence[layers.Recipe]:
    model = Path(tiny_model.__file__).read_bytes()
    return (
        layers.base(_PACKAGES),
        layers.Recipe("vllm-site", _site_key(), "app/site", _make_site),
        layers.Recipe("vllm-model", content_key({"model": model}, str(_SHAPE), _LAUNCHER), "", _make_model),
    )


def _lock() -> str:
    return requirements_lock.without(_LOCK.read_text(), ())


def _site_key() -> str:
    sources = [Path(module.__file__ or "") for module in (cuda_stubs, gpu_code)]
    steps = {path.name: path.read_bytes() for path in sources}
    return content_key(steps, _lock(), _ABOUT, *_UNUSED, "1")


def _make_site(tree: Path) -> None:
    layers.install(_lock(), tree)
    cuda_stubs.install(tree)
    gpu_code.remove(tree)
    for name in _UNUSED:
        unused = tree / name
        shutil.rmtree(unused) if unused.is_dir() else unused.unlink(missing_ok=True)
    for name in _OTHER_KERNELS:
        kernels = tree / "vllm" / name
        if kernels.exists():
            kernels.unlink()
            kernels.symlink_to(_KERNELS)
    about = tree / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(_ABOUT)
    layers.compile_tree(tree)
    layers.check_import(tree, "import torch, vllm; from vllm.platforms import current_platform as p; assert p.is_cpu()")


def _make_model(tree: Path) -> None:
    """The model, and vLLM's command line, which the site's packages leave out of the path."""
    folder = tiny_model.write_tiny_model(tree / MODEL.lstrip("/"), _SHAPE)
    settings = folder / "tokenizer_config.json"
    told = {**json.loads(settings.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(told))
    launcher = tree / "usr" / "bin" / "vllm"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
