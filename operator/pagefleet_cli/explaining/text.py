"""The explanation for people and for programs. Pure."""

import io
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from pagefleet_api.explanation import NextSteps, Threshold
from pagefleet_api.scaling import MetricType, Mode
from pagefleet_api.schema import Model
from pagefleet_api.status import Decision
from pagefleet_api.wording import counted, percent
from pagefleet_cli.explaining.asking import Told

WIDTH = 100
_IN_SHARES = (MetricType.KV_CACHE_USAGE, MetricType.KV_CACHE_DEMAND)
_SCALING = ("ScalingActive", "AbleToScale", "ScalingLimited")
_LATEST_CHANGES = 5


def as_json(told: Told) -> str:
    """One object; `nextSteps` is null where the operator could not be asked."""
    steps = told.explanation.next_steps if told.explanation else None
    document = {
        "namespace": told.place.namespace,
        "name": told.place.name,
        "source": "status" if told.explanation is None else "operator",
        "sourceMessage": told.source,
        "replicas": told.status.replicas,
        "readyReplicas": told.status.ready_replicas,
        "decision": None if told.decision is None else _wire(told.decision),
        "nextSteps": None if steps is None else _wire(steps),
        "changes": [_wire(change) for change in _changes(told)],
        "conditions": [_wire(each) for each in told.status.conditions if each.type in _SCALING],
    }
    return json.dumps(document, indent=2)


def as_text(told: Told, wall: datetime) -> str:
    """Inputs, each step, the result, and what comes next; `wall` is now."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, emoji=False, markup=False, soft_wrap=True)
    decision = told.decision
    console.print(_head(told, decision))
    console.print(f"({told.source})")
    if decision is not None:
        _print_decision(console, decision, wall)
    for condition in told.status.conditions:
        if condition.type in _SCALING:
            console.print(f"{condition.type} {condition.status}, {condition.reason}: {condition.message}")
    if told.explanation is not None and told.explanation.next_steps is not None:
        for line in _next(told.explanation.next_steps):
            console.print(line)
    _print_changes(console, _changes(told))
    written = console.file
    assert isinstance(written, io.StringIO)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _head(told: Told, decision: Decision | None) -> str:
    ready = f"{told.status.ready_replicas} ready"
    if decision is not None:
        return f"{told.place}: {decision.desired} wanted, {ready}"
    if told.mode == Mode.EXTERNAL:
        return f"{told.place}: spec.replicas is {told.replicas}, {ready}; an autoscaler outside of Pagefleet sets it"
    if told.mode is not None:
        return f"{told.place}: nothing was decided yet, {ready}; kubectl describe infs {told.place.name} says why"
    return f"{told.place}: spec.replicas is {told.replicas}, {ready}; nothing scales it, as spec.autoscaling is absent"


def _print_decision(console: Console, decision: Decision, wall: datetime) -> None:
    ago_s = max((wall - datetime.fromisoformat(decision.time)).total_seconds(), 0)
    console.print(f"\nDecided {ago_s:.0f} s ago: {decision.before} → {decision.desired}, {decision.reason}")
    console.print(f"  {decision.message}")
    console.print(
        f"\nInputs: {counted(decision.pods_seen, 'pod')} with a fresh sample, {decision.pods_missing} without"
    )
    rows = [
        (each.type, each.value or "missing", each.target, "-" if each.proposal is None else str(each.proposal))
        for each in decision.readings
    ]
    console.print(_table(("  METRIC", "ALL PODS", "TARGET", "ASKS FOR"), [(f"  {row[0]}", *row[1:]) for row in rows]))
    console.print("Steps:" if decision.clamps else "Steps: none changed the answer")
    for number, clamp in enumerate(decision.clamps, start=1):
        console.print(f"  {number}. {clamp}")


def _next(steps: NextSteps) -> Iterator[str]:
    yield "\nNext step up, as soon as one of these is so:"
    yield from (
        f"  {each.type} above {_amount(each, each.limit)}, now {_amount(each, each.demand)}" for each in steps.up
    )
    yield from (f"  but held: {words}" for words in steps.up_held_by)
    yield "Next step down, when all of these are so:"
    yield from (
        f"  {each.type} at most {_amount(each, each.limit)}, now {_amount(each, each.demand)}" for each in steps.down
    )
    yield from (f"  but held: {words}" for words in steps.down_held_by)
    if steps.down_after_seconds is not None:
        wait = f"and not before {steps.down_after_seconds:.0f} s from now"
        yield f"  {wait if steps.down_after_seconds else 'and then at once, as no window and no rate holds it'}"


def _amount(threshold: Threshold, value: float) -> str:
    if threshold.type == MetricType.TIME_TO_FIRST_TOKEN:
        return f"{value:.3g} s"
    return f"{percent(value)} of a pod's KV" if threshold.type in _IN_SHARES else f"{value:.4g}"


def _changes(told: Told) -> Sequence[Decision]:
    """Moves of the number, latest first."""
    if told.explanation is not None:
        moved = [each for each in reversed(told.explanation.decisions) if each.before != each.desired]
        if moved:
            return moved[:_LATEST_CHANGES]
    return () if told.status.autoscaling is None else told.status.autoscaling.history[:_LATEST_CHANGES]


def _print_changes(console: Console, changes: Sequence[Decision]) -> None:
    if changes:
        rows = [(f"  {each.time}", f"{each.before} → {each.desired}", each.reason) for each in changes]
        console.print("\nLatest changes:")
        console.print(_table(None, rows))


def _table(head: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="", show_header=head is not None)
    for heading in head or ("",) * len(rows[0]):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _wire(value: Model) -> dict[str, Any]:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)
