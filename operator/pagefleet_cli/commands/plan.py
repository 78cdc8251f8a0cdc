"""`pagefleet plan FILE`: which GPU types a service fits on, and how many tokens its cache holds there."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How to print the answer."""

    TABLE = "table"
    JSON = "json"


_Draft = Annotated[Path | None, typer.Option("--draft", metavar="PATH", help="As --config, of model.draft.")]


def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML with InferenceServices; - is standard input.")],
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print the answer.")] = Output.TABLE,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="TYPE", help="Only this GPU type; may be repeated.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="PATH", help="The model's config.json, or the folder it is in.")
    ] = None,
    index: Annotated[
        Path | None, typer.Option("--index", metavar="PATH", help="Its model.safetensors.index.json.")
    ] = None,
    draft: _Draft = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Fetch config.json and index of models that are downloaded (network).")
    ] = False,
) -> None:
    """Say which GPU types each service of FILE fits on: weights, KV cache, tokens, sequences.

    Works offline. A file:// model is read where it lies; of any other give --config, and --index if there is one, or
    --fetch, which asks hub or bucket for these two files with the credentials of your environment (HF_TOKEN, AWS_…).

    Exit code: 0 when each service fits one of the types, 1 when one fits none, 2 for a wrong FILE or option,
    3 when the model's files are not here.
    """
    from pagefleet_cli import documents
    from pagefleet_cli.planning import estimates, facts, report

    gpus = estimates.chosen(gpu or [])
    services = documents.read_services(file)
    if config is not None:
        facts.check_one_model(services, file)
    if draft is not None:
        facts.check_one_draft(services, file)
    plans = []
    for service in services:
        found, ranks = facts.of_service(service, config, index, fetch=fetch), facts.ranks_of(service, fetch=fetch)
        plans.append(estimates.of_service(service, found, ranks, gpus, facts.draft_of(service, draft, fetch=fetch)))
    typer.echo(report.as_json(plans) if output is Output.JSON else report.as_table(plans))
    raise typer.Exit(0 if all(each.fits_somewhere for each in plans) else 1)
