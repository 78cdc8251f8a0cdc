"""The timeline tells what a watch saw, in order and with the numbers of each decision."""

import io
from typing import Any

from rich.console import Console

from e2e import timeline
from e2e.kubectl import Seen

DECISION = {
    "time": "2026-01-01T00:00:02Z",
    "before": 1,
    "desired": 3,
    "reason": "WaitingRequests",
    "message": "12 waiting",
    "podsSeen": 1,
    "podsMissing": 1,
    "readings": [
        {"type": "WaitingRequests", "value": "12", "target": "4", "proposal": 3},
        {"type": "KVCacheUsage", "target": "75"},
    ],
    "clamps": ["at most 6"],
}
START_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def seen(second: float, *, history: tuple[dict[str, Any], ...] = (), **status: Any) -> Seen:
    scaling = {"desiredReplicas": status.pop("desired", 1), "history": list(history)}
    return Seen(second, START_S + second, {"status": {"autoscaling": scaling, **status}})


def test_a_line_comes_only_when_a_number_changes() -> None:
    states = [
        seen(0, readyReplicas=1),
        seen(1, readyReplicas=1, targets="queue 1/4"),
        seen(2, readyReplicas=1, desired=3),
    ]
    assert [(entry.at_s - START_S, entry.ready, entry.desired) for entry in timeline.changes(states)] == [
        (0, 1, 1),
        (2, 1, 3),
    ]


def test_a_decision_is_told_once_with_each_metric_and_clamp() -> None:
    [entry] = timeline.decisions([seen(2, history=(DECISION,)), seen(3, history=(DECISION,))])
    assert (entry.at_s, entry.what, entry.desired) == (START_S + 2, "decision 1 → 3", 3)
    assert entry.why == (
        "WaitingRequests: 1 pod seen, 1 missing; WaitingRequests 12 of 4 asks for 3; "
        "KVCacheUsage missing of 75; at most 6"
    )


def test_an_event_has_its_time_whatever_api_wrote_it() -> None:
    bodies = [
        {"eventTime": "2026-01-01T00:00:01.5Z", "reason": "ScaledUp", "message": "1 to 3", "metadata": {}},
        {"lastTimestamp": "2026-01-01T00:00:03Z", "reason": "Drained", "metadata": {}},
        {"reason": "NoTime", "metadata": {}},
    ]
    assert [(entry.at_s - START_S, entry.what) for entry in timeline.events(bodies)] == [
        (1.5, "event ScaledUp"),
        (3, "event Drained"),
    ]


def test_the_table_is_in_order_and_starts_with_the_load() -> None:
    console = Console(file=io.StringIO(), width=160)
    entries = timeline.changes([seen(20, readyReplicas=1), seen(5, readyReplicas=3), seen(-9, readyReplicas=7)])
    timeline.show(console, entries, START_S)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split("│")[1:4] for line in console.file.getvalue().splitlines() if "pods" in line]
    assert [(row[0].strip(), row[2].strip()) for row in rows] == [("5", "3"), ("20", "1")]
