"""Both programs write the same log lines."""

import json
import logging
import sys

from pagefleet_api.log_lines import JsonLines, event, fields


def record(name: str, text: str, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "msg": text, "levelname": "INFO", **more})


def test_an_event_is_one_json_line_with_its_fields() -> None:
    line = json.loads(JsonLines().format(record("pagefleet_engine.x", "ready", model="m", created=0.5)))
    assert line == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "event": "ready",
        "logger": "pagefleet_engine.x",
        "model": "m",
    }


def test_a_librarys_prose_is_a_field_of_one_event() -> None:
    assert event(record("uvicorn.error", "Something\nhappened")) == {
        "event": "uvicorn_message",
        "text": "Something\nhappened",
    }
    assert event(record("__main__", "started")) == {"event": "started"}


def test_what_libraries_add_to_a_record_for_themselves_is_no_field() -> None:
    assert fields(record("kopf.objects", "x", k8s_ref={}, color_message="x", taskName=None, reason="r")) == {
        "reason": "r"
    }


def test_an_exception_is_in_the_line_and_so_is_what_json_does_not_know() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        line = JsonLines().format(record("pagefleet_engine.x", "failed", exc_info=sys.exc_info(), at={1}))
    assert "ValueError: why" in json.loads(line)["exception"]
    assert json.loads(line)["at"] == "{1}"
