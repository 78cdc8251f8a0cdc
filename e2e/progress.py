"""What a long command shows while it works: a spinner on a terminal, plain lines elsewhere."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.markup import escape

_CLOCK = re.compile(r"^\[ *\d+ s\] ")
"""The cluster's own tool tells its time too; one clock is enough."""

_LINES_TOLD = 60

Say = Callable[[str], None]
"""Tells what a step is doing right now."""


class ToolFailed(Exception):
    """A command that a step runs failed; the text is the end of its output."""


class Progress:
    """Steps with their time, printed to one stream."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        # without a terminal there is no width to keep to
        self.console = Console(file=stream, highlight=False)
        if not self.console.is_terminal:
            self.console = Console(file=stream, highlight=False, width=200)
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    @contextmanager
    def step(self, title: str) -> Iterator[Say]:
        """Show a step until it ends; its time is printed when it ends well."""
        start_s = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(escape(title)) as status:
                yield lambda detail: status.update(f"{escape(title)}  [dim]{escape(detail)}[/dim]")
        else:
            self.line(title)
            yield lambda detail: self.line(f"  {detail}") if detail else None
        self.line(f"{title}: done in {time.monotonic() - start_s:.1f} s", style="green")

    def line(self, text: str, style: str = "") -> None:
        """One line, or several; elsewhere than on a terminal the first that is not empty has the seconds so far."""
        clock = "" if self.console.is_terminal else f"[{self.elapsed_s:6.1f} s] "
        words = text.lstrip("\n")
        empty = text[: len(text) - len(words)]
        self.console.print(f"{empty}{clock}{words}", style=style, markup=False, soft_wrap=True)

    def piece(self, text: str) -> None:
        """Text without a line's end, shown at once."""
        self.console.print(text, end="", markup=False, soft_wrap=True)
        self.console.file.flush()


def run_tool(argv: Sequence[str], say: Say, environment: Mapping[str, str] | None = None) -> str:
    """Run a command whose output lines are told as they come; its whole output.

    Raises:
        ToolFailed: it is missing, or exits with another status than 0.
    """
    lines: list[str] = []
    try:
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except FileNotFoundError as error:
        raise ToolFailed(f"{argv[0]} is missing") from error
    with process:
        assert process.stdout is not None  # by PIPE
        try:
            for line in process.stdout:
                lines.append(line)
                if line.strip():
                    say(_CLOCK.sub("", line.rstrip()))
        except BaseException:  # an interrupted step takes its tool with it
            process.terminate()
            raise
    if process.returncode:
        raise ToolFailed(f"{' '.join(argv)} failed:\n{''.join(lines[-_LINES_TOLD:]).rstrip()}")
    return "".join(lines)
