"""What can go wrong, with the exit code that a script sees. The text is for people: one line a problem."""

from typing import ClassVar


class CommandFailed(Exception):
    """A command that could not give its answer. Its lines name file, field, value and the way out."""

    exit_code: ClassVar[int] = 2


class InputWrong(CommandFailed):
    """A file or an option cannot be used (2, as for an unknown option)."""


class FactsMissing(CommandFailed):
    """What the command must know of the model is not here (3)."""

    exit_code = 3
