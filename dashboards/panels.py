"""What a panel is, and how Grafana's SDK is told so."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, dashboard

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")

STAT_HEIGHT, GRAPH_HEIGHT, FULL_WIDTH = 4, 8, 24
TOTALS_STEP = "5s"
"""Shortest step of a total; a longer range takes longer steps, `TOTALS_POINTS` in all."""
TOTALS_POINTS = 720


class Unit(StrEnum):
    """Grafana's names of the units in use."""

    COUNT = "none"
    SHORT = "short"
    SHARE = "percentunit"
    SECONDS = "s"
    BYTES = "bytes"
    PER_SECOND = "cps"
    REQUESTS_PER_SECOND = "reqps"
    TOKENS_PER_SECOND = "suffix: tok/s"


class Color(StrEnum):
    """Grafana's colours for well, look, act; neutral where a number is neither good nor bad."""

    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    BLUE = "blue"


class Query(NamedTuple):
    """One PromQL expression and what its series are called."""

    expr: str
    legend: str = ""


class Step(NamedTuple):
    """From `value` on (None: from the bottom) a stat has this colour."""

    value: float | None
    color: Color


NEUTRAL = (Step(None, Color.BLUE),)
MUST_STAY_ZERO = (Step(None, Color.GREEN), Step(1e-9, Color.RED))
WORTH_A_LOOK = (Step(None, Color.GREEN), Step(1e-9, Color.YELLOW))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One big number, now. `over_range`: the number is a total of the shown range."""

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    steps: tuple[Step, ...] = NEUTRAL
    width: int = 4
    over_range: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Lines over time; `stacked` where the lines are parts of one whole, `stepped` for whole numbers."""

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    width: int = 8
    stacked: bool = False
    stepped: bool = False


class Row(NamedTuple):
    """A titled group of panels, left to right."""

    title: str
    panels: tuple[Stat | Graph, ...]


def builder(panel: Stat | Graph, number: int) -> Any:
    """The SDK's builder for a panel; `number` is its id in the dashboard."""
    result = _stat(panel) if isinstance(panel, Stat) else _graph(panel)
    result = result.id(number).title(panel.title).description(panel.description).datasource(DATASOURCE)
    result = result.unit(panel.unit).span(panel.width)
    for index, query in enumerate(panel.queries):
        result = result.with_target(_target(query, chr(ord("A") + index), instant=isinstance(panel, Stat)))
    return result


def _target(query: Query, reference: str, *, instant: bool) -> Any:
    target = prometheus.Dataquery().expr(query.expr).ref_id(reference).datasource(DATASOURCE)
    target = target.legend_format(query.legend or "__auto")
    return target.instant() if instant else target.range()


def _stat(panel: Stat) -> Any:
    steps = [dashboard.Threshold(value=step.value, color=step.color) for step in panel.steps]
    result = (
        stat.Panel()
        .height(STAT_HEIGHT)
        .thresholds(builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
    )
    return result.interval(TOTALS_STEP).max_data_points(TOTALS_POINTS) if panel.over_range else result


def _graph(panel: Graph) -> Any:
    legend = common_builders.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    legend = legend.display_mode(common.LegendDisplayMode.LIST)
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    tooltip = tooltip.sort(common.SortOrder.DESCENDING)
    result = timeseries.Panel().height(GRAPH_HEIGHT).legend(legend).tooltip(tooltip).min(0)
    result = result.fill_opacity(20 if panel.stacked else 0)
    if panel.stacked:
        result = result.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if panel.stepped:
        result = result.line_interpolation(common.LineInterpolation.STEP_AFTER)
    return result
