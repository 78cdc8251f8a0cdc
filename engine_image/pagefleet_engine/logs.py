"""Where the log lines of the engine's processes go, and its last words."""

import contextlib
import logging
import sys
from pathlib import Path

from pagefleet_api.log_lines import JsonLines

TERMINATION_LOG = Path("/dev/termination-log")
"""The kubelet makes this file in every container and reports what is in it when the container ends."""
_LONGEST_BYTES = 4096


def configure() -> None:
    """Send everything from level info to standard error as JSON lines; libraries from warning."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def say_last(reason: str) -> None:
    """Leave one line for the status of the pod, in place of the log's end; outside a pod it does nothing."""
    line = " ".join(reason.split()).encode()[:_LONGEST_BYTES]
    if TERMINATION_LOG.exists():
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_bytes(line)
