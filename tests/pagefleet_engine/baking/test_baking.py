"""What is compiled without a GPU is what an engine asks for at its start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
MANAGER = "pagefleet_engine.kernels.baked:BakedKernels"


def run(module: str, *arguments: str, **environment: str) -> list[Any]:
    """The JSON lines of a program of its own: kernels of this process may be those of Triton's interpreter."""
    paths = os.pathsep.join(str(ROOT / part) for part in ("crds", "engine_image", "."))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        env=os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": paths} | environment,
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_engine_with_baked_kernels_compiles_none(tmp_path: Path) -> None:
    from pagefleet_engine.baking import tasks

    baked, cache, moved = tmp_path / "baked", tmp_path / "cache", tmp_path / "moved"
    started = "tests.pagefleet_engine.baking.started"
    (first,) = run(started, "nowhere", TRITON_CACHE_DIR=str(baked), TRITON_STORE_BINARY_ONLY="1")
    assert first["compiled"] > 15, first
    assert first["baked"] == first["cached"] == 0, first
    kernels, _ = tasks.trim(baked)
    assert kernels == first["compiled"]
    baked.rename(moved)
    (second,) = run(
        started, "host", TRITON_CACHE_DIR=str(cache), TRITON_CACHE_MANAGER=MANAGER, PAGEFLEET_KERNELS=str(moved)
    )
    assert (second["baked"], second["cached"], second["compiled"]) == (kernels, 0, 0), second
    assert not [path for path in cache.rglob("*") if path.is_file()]
