"""The PromQL of a dashboard as somebody without Grafana can run it: tests, the demo, `promtool`. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


class PanelQuery(NamedTuple):
    """One query and where it is shown."""

    row: str
    panel: str
    legend: str
    expr: str


def queries(dashboard: Mapping[str, Any]) -> Iterator[PanelQuery]:
    """Every query of a dashboard's JSON, in the order of its panels."""
    row = ""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        for target in panel.get("targets", ()):
            yield PanelQuery(row, panel["title"], target["legendFormat"], target["expr"])


def resolved(
    expr: str, *, range_s: float, step_s: float = 5, rate_s: float = 60, namespace: str = ".+", service: str = ".+"
) -> str:
    """`expr` with Grafana's variables filled in.

    range_s: the shown range; step_s: its steps; rate_s: the window of rates, at least four scrapes. `namespace`
    and `service` are regular expressions. Raises KeyError for a variable that Grafana would not know here.
    """
    values = {
        "__range": f"{round(range_s * 1000)}ms",
        "__interval": f"{round(step_s * 1000)}ms",
        "__rate_interval": f"{round(rate_s * 1000)}ms",
        "namespace": namespace,
        "service": service,
    }
    return _VARIABLE.sub(lambda match: values[match[1]], expr)
