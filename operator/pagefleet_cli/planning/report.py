"""Plans as text: a table for people, JSON for programs. Pure."""

import io
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pagefleet_api.sizing.adapters import DEFAULT_RANK
from pagefleet_api.sizing.fit import Fit, gib
from pagefleet_cli.planning.estimates import ServicePlan

WIDTH = 80


def as_json(plans: Sequence[ServicePlan]) -> str:
    """A list with one entry for each service and GPU type; sizes in bytes, of the whole model unless `perGpu`."""
    return json.dumps([_entry(plan, fit) for plan in plans for fit in plan.fits], indent=2)


def _entry(plan: ServicePlan, fit: Fit) -> dict[str, Any]:
    return {
        "service": plan.name,
        "model": plan.service.spec.model.uri,
        "gpu": fit.gpu,
        "gpuCount": plan.demand.tensor * plan.demand.pipeline,
        "fits": fit.fits,
        "reason": fit.reason,
        "weightsBytes": plan.weights.total_bytes,
        "weightsFrom": plan.weights.source.value,
        "kvBytesPerToken": plan.kv_bytes_per_token,
        "kvTokens": fit.kv_tokens,
        "kvBlocks": fit.kv_blocks,
        "maxModelLen": fit.window_tokens,
        "sequencesAtMaxModelLen": round(fit.sequences, 2),
        "perGpu": {
            "weightsBytes": fit.weights_bytes,
            "adaptersBytes": fit.adapters_bytes,
            "draftBytes": fit.draft_bytes,
            "activationsBytes": fit.activations_bytes,
            "reservedBytes": fit.reserved_bytes,
            "kvBytes": fit.kv_bytes,
            "kvBytesPerToken": fit.kv_bytes_per_token,
        },
    }


def as_table(plans: Sequence[ServicePlan]) -> str:
    """A table for each service, no wider than 80 columns, and below it why types do not fit."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, emoji=False, markup=False)
    for place, plan in enumerate(plans):
        if place:
            console.print()
        _print(console, plan)
    written = console.file
    assert isinstance(written, io.StringIO)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _print(console: Console, plan: ServicePlan) -> None:
    demand, count = plan.demand, plan.demand.tensor
    where = "in the pod's memory" if demand.device == "cpu" else f"on {count} GPU{'s' if count > 1 else ''} a pod"
    where += f", {demand.pipeline} pods a replica" if demand.pipeline > 1 else ""
    console.print(f"{plan.name}  {plan.service.spec.model.uri}", soft_wrap=True)
    console.print(
        f"weights {gib(plan.weights.total_bytes)} (from its {plan.weights.source.value}), "
        f"{plan.kv_bytes_per_token:,} KV bytes a token, {where}"
    )
    _print_adapters(console, plan)
    if demand.draft.weights_bytes:
        draft = demand.draft
        told = f"{gib(draft.weights_bytes)} and {draft.kv_bytes_per_token:,} KV bytes a token"
        console.print(f"its draft {told}, on each GPU")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column("GPU", no_wrap=True)
    table.add_column("FITS")
    for heading in ("KV ROOM", "KV TOKENS", "MAX LENGTH", "SEQUENCES"):
        table.add_column(heading, justify="right")
    for fit in plan.fits:
        table.add_row(fit.gpu, "yes" if fit.fits else "no", *_numbers(fit))
    console.print(table)
    for fit in plan.fits:
        if fit.reason is not None:
            console.print(f"{fit.gpu}: {fit.reason}")


def _print_adapters(console: Console, plan: ServicePlan) -> None:
    ranks = plan.demand.adapter_ranks
    if not ranks:
        return
    size = gib(max(fit.adapters_bytes for fit in plan.fits))
    console.print(f"adapters {size} (rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))})")
    if plan.adapters_unknown:
        assumed = f"rank {DEFAULT_RANK} is assumed of {', '.join(plan.adapters_unknown)}"
        console.print(f"{assumed}: give spec.model.adapters[].rank, or --fetch for one that is downloaded")


def _numbers(fit: Fit) -> tuple[str, str, str, str]:
    if fit.kv_tokens == 0:
        return "-", "-", "-", "-"
    return gib(fit.kv_bytes), f"{fit.kv_tokens:,}", f"{fit.window_tokens:,}", f"{fit.sequences:,.1f}"
