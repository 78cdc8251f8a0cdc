"""Log events as JSON lines or as text: one name, then fields."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_TOO_CHATTY = ("kopf", "aiohttp.access", "asyncio")


class JsonLines(logging.Formatter):
    """One object a line: time, level, event, logger, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **_event(record),
            "logger": record.name,
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class Text(logging.Formatter):
    """The same for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        event = " ".join(_event(record).values())
        line = f"{time} {record.levelname:<7} {event} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _event(record: logging.LogRecord) -> dict[str, str]:
    """Our records are named events; those of libraries are prose, which is a field of one event for each library."""
    library = record.name.partition(".")[0]
    if library.startswith("pagefleet") or library == "__main__":
        return {"event": record.getMessage()}
    return {"event": f"{library}_message", "text": record.getMessage()}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN and name != "k8s_ref"}


def configure(log_format: Literal["json", "text"]) -> None:
    """Send every record to standard output in that form; called once by the program."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines() if log_format == "json" else Text())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _TOO_CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
