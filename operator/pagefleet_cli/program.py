"""The program: a command a module in `commands`, each of which imports what it works with only when it is called.

Exit codes: 0 answered; 1 answered, and the answer is no; others in `errors`.
"""

import os
import sys

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


@app.callback()
def _commands() -> None:
    """Without this, typer would leave the name of an only command out."""


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
