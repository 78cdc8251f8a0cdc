"""`pagefleet explain infs/NAME`: why a service has the number of pods that it has."""

from enum import StrEnum
from typing import Annotated

import typer

from pagefleet_cli.options import time

HELP = """Say why a service has the number of pods that it has, and what would change it.

Asks the operator that decides, through the API server's proxy to its pod (the rights to get the service and its
Deployment in the service's namespace, and Leases and pods/proxy in the operator's), or at --operator-url. Without
that it says what the service's status holds.

Exit code: 0 answered; 2 for a wrong name or option; 3 when the cluster gives no answer.
"""


class Output(StrEnum):
    """How to print the answer."""

    TEXT = "text"
    JSON = "json"


def explain(
    service: Annotated[str, typer.Argument(metavar="infs/NAME", help="The InferenceService.")],
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Default: the context's.")] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="Of the kubeconfig; default: the current one.")
    ] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print the answer.")] = Output.TEXT,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until interrupted.")] = False,
    interval: Annotated[float, time("Time between two looks of --watch.", 0.1)] = 2.0,
    operator_url: Annotated[
        str | None, typer.Option("--operator-url", metavar="URL", help="The operator's port, as of a port-forward.")
    ] = None,
) -> None:
    """See HELP."""
    from pagefleet_cli.explaining import access, asking, looking

    name = asking.service_name(service)
    cluster = access.connect(context)
    place = asking.Place(namespace or cluster.namespace, name)
    operator = None if operator_url is None else access.Web(operator_url)
    looking.look(cluster.api, place, operator, looking.Manner(output.value, interval if watch else None))
