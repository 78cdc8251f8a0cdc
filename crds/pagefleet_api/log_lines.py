"""Log records as both programs write them: one JSON object a line, with an event's name and then its fields.

Records of ours are named events; those of libraries are prose, which is a field of one event for each library.
"""

import json
import logging
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message", "k8s_ref"}
"""What is no field of an event: the record's own attributes, and those that uvicorn and kopf add for themselves."""


class JsonLines(logging.Formatter):
    """One object a line: time, level, event, logger, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **event(record),
            "logger": record.name,
            **fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def event(record: logging.LogRecord) -> dict[str, str]:
    """`event`, and for a library's record its `text`."""
    library = record.name.partition(".")[0]
    if library.startswith("pagefleet") or library == "__main__":
        return {"event": record.getMessage()}
    return {"event": f"{library}_message", "text": record.getMessage()}


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What the record's `extra` carried."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
