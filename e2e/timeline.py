"""What happened to an autoscaled service and why, in the order of time. Pure, except for the printing at the end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table

from e2e.kubectl import Json, Seen
from pagefleet_api.status import Decision
from pagefleet_api.wording import counted


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One line; `at_s` is a Unix time. What a line does not know is None."""

    at_s: float
    what: str
    ready: int | None = None
    draining: int | None = None
    desired: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of a status that a reader of the timeline follows."""

    ready: int
    draining: int
    desired: int | None

    @classmethod
    def of(cls, body: Json) -> "Counts":
        status = body.get("status", {})
        scaling = status.get("autoscaling", {})
        return cls(status.get("readyReplicas", 0), status.get("drainingReplicas", 0), scaling.get("desiredReplicas"))


def changes(seen: Iterable[Seen]) -> list[Entry]:
    """A line for each state whose counts differ from the one before it."""
    entries: list[Entry] = []
    before: Counts | None = None
    for state in seen:
        now = Counts.of(state.body)
        if now != before:
            targets = state.body.get("status", {}).get("targets") or ""
            entries.append(Entry(state.wall_s, "pods", now.ready, now.draining, now.desired, targets))
            before = now
    return entries


def decisions(seen: Iterable[Seen]) -> list[Entry]:
    """A line for each decision that any of the states tells of, with its numbers."""
    found: dict[tuple[str, int], Decision] = {}
    for state in seen:
        for raw in state.body.get("status", {}).get("autoscaling", {}).get("history", ()):
            decision = Decision.model_validate(raw)
            found[decision.time, decision.desired] = decision
    return [
        Entry(_unix_s(d.time), f"decision {d.before} → {d.desired}", desired=d.desired, why=reasons(d))
        for d in found.values()
    ]


def reasons(decision: Decision) -> str:
    """A decision's numbers in one line: each metric with its value, target and answer, then the clamps."""
    readings = [
        f"{r.type} {'missing' if r.value is None else r.value} of {r.target}"
        + ("" if r.proposal is None else f" asks for {r.proposal}")
        for r in decision.readings
    ]
    pods = f"{counted(decision.pods_seen, 'pod')} seen" + (
        f", {decision.pods_missing} missing" if decision.pods_missing else ""
    )
    return "; ".join([f"{decision.reason}: {pods}", *readings, *decision.clamps])


def events(bodies: Iterable[Json]) -> list[Entry]:
    """A line for each Event."""
    entries = []
    for body in bodies:
        moment = body.get("eventTime") or body.get("lastTimestamp") or body["metadata"].get("creationTimestamp")
        if moment:
            entries.append(Entry(_unix_s(moment), f"event {body.get('reason', '')}", why=body.get("message", "")))
    return entries


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def show(console: Console, entries: Sequence[Entry], since_s: float) -> None:
    """Print the lines from `since_s` (Unix time) on, as a table."""
    table = Table(title="What happened and why", title_justify="left", expand=False)
    for heading in ("seconds", "what"):
        table.add_column(heading, no_wrap=True, justify="right" if heading == "seconds" else "left")
    for heading in ("ready", "draining", "wanted"):
        table.add_column(heading, justify="right")
    table.add_column("why", overflow="fold")
    for entry in sorted(entries, key=lambda e: (e.at_s, e.what)):
        if entry.at_s >= since_s - 1:  # Events and decisions have whole seconds
            numbers = ("" if n is None else str(n) for n in (entry.ready, entry.draining, entry.desired))
            table.add_row(f"{max(entry.at_s - since_s, 0):.0f}", entry.what, *numbers, entry.why)
    console.print(table)
