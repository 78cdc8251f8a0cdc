"""The program: a command a module in `commands`, each of which imports what it works with only when it is called.

Exit codes: 0 answered; 1 answered, and the answer is no; others in `errors`.
"""

import errno
import os
import sys
from importlib import metadata
from typing import Annotated

import typer

from pagefleet_cli.commands import explain, plan, simulate
from pagefleet_cli.errors import CommandFailed

INTERRUPTED = 130

app = typer.Typer(
    name="pagefleet",
    help="Pagefleet: fleets of LLM inference servers on Kubernetes. Also as `kubectl pagefleet`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pagefleet {metadata.version('pagefleet')}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    """What all commands have; `_tell_version` acts on its option."""


app.command("plan")(plan.plan)
app.command("explain", help=explain.HELP)(explain.explain)
app.command("simulate", help=simulate.HELP)(simulate.simulate)


def main() -> None:
    """Run the command that the arguments name; what goes wrong is told in lines on standard error."""
    try:
        app()
    except CommandFailed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("standard output: the disk is full; write to another place\n")
        sys.exit(CommandFailed.exit_code)
