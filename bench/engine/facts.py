"""What a figure depends on beside the code: the machine, its software, what is warm."""

import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "transformers")
COMMIT_VARIABLE = "BENCH_COMMIT"
"""Names the commit where the tree is a copy without git."""
_QUERY = "name,driver_version,memory.total"
_TIMEOUT_S = 20


def machine(*, has_gpu: bool) -> dict[str, Any]:
    """The fields that every row of a run has; the GPU's are None unless one may be used."""
    name, driver, memory = (gpu() if has_gpu else None) or (None, None, None)
    return {
        "gpu": name,
        "driver": driver,
        "gpu_memory": memory,
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "triton_cache": triton_cache() if has_gpu else None,
        "page_cache": "not controlled",
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def triton_cache() -> str:
    """ "warm" when compiled kernels lie in Triton's cache folder; else as an empty one."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return "warm" if folder.is_dir() and any(folder.iterdir()) else empty_cache()


def empty_cache() -> str:
    """ "baked" when an engine looks for an image's kernels beside its cache, else "cold"."""
    return "baked" if os.environ.get("PAGEFLEET_KERNELS") else "cold"


def commit() -> str:
    """The commit that is measured, with "+" where files differ from it; "unknown" where nothing says it."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named
    head = _output("git", "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    return head + ("+" if _output("git", "status", "--porcelain", "--untracked-files=no") else "")


def gpu() -> tuple[str, str, str] | None:
    """The first GPU's name, driver and memory; None where there is none."""
    found = _output("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader")
    if not found:
        return None
    name, driver, memory = (part.strip() for part in found.splitlines()[0].split(","))
    return name, driver, memory


def _cpu() -> str:
    """Its name where Linux gives one, as on x86; else its kind."""
    named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return named[1] if named else platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """What a command prints; None when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
