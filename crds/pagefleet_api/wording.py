"""Numbers and given values as people read them, the same way everywhere. Pure."""

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

_SHOWN_CHARACTERS = 80
_SHOWN_ITEMS = 3


def percent(share: float, decimals: int = 0) -> str:
    """A share of 1 in per cent: 0.75 is "75 %"."""
    return f"{share * 100:.{decimals}f} %"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 pod", "3 pods"; for nouns with a plural in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def twice(names: Sequence[str]) -> str | None:
    """The first name that comes more than once."""
    return next((name for name in names if names.count(name) > 1), None)


def some(texts: Sequence[str], separator: str = ", ") -> str:
    """The first of them, and how many there are beside: "a, b, c and 2 more"."""
    more = len(texts) - _SHOWN_ITEMS
    return separator.join(texts[:_SHOWN_ITEMS]) + (f" and {more} more" if more > 0 else "")


def shown(value: Any) -> str:
    """A value that somebody gave, on one line; the middle is left out where it is long."""
    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxstring = short.maxother = short.maxlong = _SHOWN_CHARACTERS
    return brief(short.repr(value), 4 * _SHOWN_CHARACTERS)


def place(parts: Iterable[str | int], root: str = "") -> str:
    """Names of fields and numbers of items as a path: "spec.volumes[0]"."""
    path = root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return path.removeprefix(".")


def brief(text: str, most_characters: int) -> str:
    """`text` on one line, without its middle where it is longer: what it is about and the way out are at its ends."""
    part = without_middle(text, most_characters)
    line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in part)
    return without_middle(line, most_characters)


def without_middle(text: str, most_characters: int) -> str:
    """`text`, and where it is longer its beginning and its end."""
    end = most_characters // 3
    return text if len(text) <= most_characters else f"{text[: most_characters - end - 1]}…{text[-end:]}"
