"""One look, or one after the other."""

import sys
import time
from datetime import UTC, datetime
from typing import NamedTuple

from pagefleet_cli.explaining import text
from pagefleet_cli.explaining.access import Reader
from pagefleet_cli.explaining.asking import Place, ask

_CLEAR = "\x1b[H\x1b[2J"


class Manner(NamedTuple):
    """How to answer."""

    output: str
    """text or json."""
    interval_s: float | None = None
    """Between two looks; None: one look."""


def look(api: Reader, place: Place, operator: Reader | None, manner: Manner) -> None:
    """Print what is known; an interrupt ends a row of looks. Raises as `ask`."""
    on_terminal = sys.stdout.isatty()
    try:
        while True:
            told = ask(api, place, operator)
            answer = text.as_json(told) if manner.output == "json" else text.as_text(told, datetime.now(UTC))
            between = _CLEAR if manner.interval_s is not None and on_terminal else ""
            sys.stdout.write(f"{between}{answer}\n")
            if manner.interval_s is None:
                return
            sys.stdout.write("" if on_terminal else "\n")
            sys.stdout.flush()
            time.sleep(manner.interval_s)
    except KeyboardInterrupt:
        return
