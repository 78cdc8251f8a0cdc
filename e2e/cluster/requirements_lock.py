"""Locked requirement files, cut down to what one image loads. Pure."""

import re
from collections.abc import Collection, Iterator


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(distribution name, its lines with hashes) of each requirement of a lock written by uv or pip-tools."""
    name = ""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        start = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)==", line)
        if start:
            if name:
                yield name, "".join(lines)
            name, lines = start[1], []
        if name and not line.lstrip().startswith("#"):
            lines.append(line)
    if name:
        yield name, "".join(lines)


def without(text: str, prefixes: Collection[str]) -> str:
    """The lock without the distributions whose names begin with one of `prefixes`."""
    return "".join(lines for name, lines in blocks(text) if not name.startswith(tuple(prefixes)))
