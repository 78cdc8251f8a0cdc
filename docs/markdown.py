"""Markdown tables. Pure."""

from collections.abc import Iterable, Sequence


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; `|` inside a cell is escaped and a line break becomes a space."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def code(text: str) -> str:
    """`text` as code, or nothing for nothing."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
