"""Every kernel compiles for Ampere and Hopper without a card, within their registers and shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

SHARED_BYTES = {80: 99 << 10, 90: 227 << 10}
"""Of one block; 99 KiB is what the smaller Ampere and Ada cards have too."""
SPILLED_BYTES = 64


@pytest.mark.timeout(400)
def test_the_kernels_fit_real_cards() -> None:
    root = Path(__file__).parents[3]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = os.pathsep.join([str(root), str(root / "engine_image"), str(root / "crds"), *filter(None, given)])
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": paths}
    program = [sys.executable, "-W", "ignore", "-m", "tests.pagefleet_engine.kernels.compile_cases"]
    found = subprocess.run(program, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    usages = [json.loads(line) for line in found.stdout.splitlines()]
    assert {usage["kernel"] for usage in usages} >= {
        "_norm_kernel",
        "_rope_kernel",
        "_dot_kernel",
        "_experts_kernel",
        "_gated_tiles",
        "early_product",
    }
    for usage in usages:
        assert usage["shared_bytes"] <= SHARED_BYTES[usage["capability"]], usage
        assert usage["local_bytes"] <= SPILLED_BYTES, usage
