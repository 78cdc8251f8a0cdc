"""Greedy answers that wait for their check, in a file, since their engine must leave the GPU before it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec


class Greedy(NamedTuple):
    """One answer at temperature 0, and where it comes from."""

    origin: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class GreedyFile(NamedTuple):
    """One JSON list a line; several processes write one after the other."""

    path: Path

    def add(self, answers: Sequence[Greedy]) -> None:
        """Append."""
        with self.path.open("ab") as file:
            file.writelines(msgspec.json.encode(answer) + b"\n" for answer in answers)

    def read(self) -> list[Greedy]:
        """All; empty when nobody has written."""
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        return [msgspec.json.decode(line, type=Greedy) for line in lines]
