"""The queries of a Grafana dashboard, as Grafana would send them. No I/O."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class PanelQuery(NamedTuple):
    """One query of one panel, with its variables still in it."""

    title: str
    expression: str
    legend: str

    def filled(self, variables: Mapping[str, str]) -> str:
        """The query for these variables; KeyError names one that is missing."""
        return fill(self.expression, variables)


_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")


def fill(expression: str, variables: Mapping[str, str]) -> str:
    """`$name`, `${name}` and `${name:format}` replaced by their values."""
    return _VARIABLE.sub(lambda match: variables[match[1] or match[2]], expression)


def queries(dashboard: Mapping[str, Any]) -> list[PanelQuery]:
    """Every query of a dashboard, rows included."""
    return [
        PanelQuery(panel.get("title", ""), target["expr"], target.get("legendFormat", ""))
        for panel in _panels(dashboard)
        for target in panel.get("targets", ())
    ]


def _panels(parent: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for panel in parent.get("panels", ()):
        yield panel
        yield from _panels(panel)
