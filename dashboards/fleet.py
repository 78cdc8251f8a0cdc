"""The dashboard `Pagefleet fleet`: what somebody on call looks at first."""

from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

from dashboards import panels
from dashboards.panels import DATASOURCE
from dashboards.rows import ROWS
from pagefleet_api.metrics import NAMESPACE, SERVICE, Operator

UID = "pagefleet-fleet"
TITLE = "Pagefleet fleet"
_ANY_VALUE = ".+"


def fleet() -> Any:
    """The dashboard as the SDK's value."""
    result = (
        builders.Dashboard(TITLE)
        .uid(UID)
        .description("Inference services: are they well, how loaded are they, what does the autoscaler do, and why.")
        .tags(["pagefleet", "llm"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    )
    for variable in (_datasource(), _namespace(), _service()):
        result = result.with_variable(variable)
    number = 0
    for row in ROWS:
        number += 1
        result = result.with_row(builders.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            result = result.with_panel(panels.builder(panel, number))
    return result.build()


def _datasource() -> Any:
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _namespace() -> Any:
    return _choice("namespace", "Namespace", f"label_values({Operator.DESIRED_REPLICAS.name}, {NAMESPACE})")


def _service() -> Any:
    chosen = f'{Operator.DESIRED_REPLICAS.name}{{{NAMESPACE}=~"$namespace"}}'
    return _choice("service", "Service", f"label_values({chosen}, {SERVICE})")


def _choice(name: str, label: str, query: str) -> Any:
    everything = dashboard.VariableOption(selected=True, text="All", value="$__all")
    return (
        builders.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(_ANY_VALUE)
        .current(everything)
    )
