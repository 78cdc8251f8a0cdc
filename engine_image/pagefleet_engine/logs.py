"""Where the log lines of the engine's processes go."""

import logging
import sys

from pagefleet_api.log_lines import JsonLines


def configure() -> None:
    """Send everything from level info to standard error as JSON lines; libraries from warning."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
