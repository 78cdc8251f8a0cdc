"""Log events as JSON lines or as text: one name, then fields."""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from pagefleet_api.log_lines import JsonLines, event, fields

_TOO_CHATTY = ("kopf", "aiohttp.access", "asyncio")


class Text(logging.Formatter):
    """The same for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        told = " ".join(f"{name}={value}" for name, value in fields(record).items())
        line = f"{time} {record.levelname:<7} {' '.join(event(record).values())} {told}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(log_format: Literal["json", "text"]) -> None:
    """Send every record to standard output in that form; called once by the program."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines() if log_format == "json" else Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _TOO_CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
