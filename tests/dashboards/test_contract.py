"""Every query of every dashboard reads what the metric contract has, in the way its kind allows."""

import json
import re

import pytest

from dashboards.expressions import INSTANCE, quantile, rate, selector, total
from dashboards.files import FILES, FOLDER
from dashboards.prometheus import POD
from dashboards.queries import PanelQuery, queries, resolved
from pagefleet_api.metrics import ENGINE, NAMESPACE, OPERATOR, SERVICE, Engine, Kind, Metric, Operator
from tests.dashboards.promql import Use, uses

QUERIES = [query for name in FILES for query in queries(json.loads((FOLDER / name).read_text()))]
FAMILIES = {series: metric for metric in (*ENGINE, *OPERATOR) for series in metric.series}
BY_TARGET = {INSTANCE, POD, "job"}
RATED = ("rate", "last_over_time")


def _reads(query: PanelQuery) -> list[Use]:
    return uses(resolved(query.expr, range_s=3600))


def _labels_of(metric: Metric, series: str) -> set[str]:
    own = {*metric.labels, *BY_TARGET, *({"le"} if series.endswith("_bucket") else ())}
    return own | {NAMESPACE, SERVICE} if metric in ENGINE else own


def _identity(query: PanelQuery) -> str:
    return f"{query.panel}-{query.legend}"


@pytest.mark.parametrize("query", QUERIES, ids=_identity)
def test_a_query_parses_and_reads_only_series_and_labels_of_the_contract(query: PanelQuery) -> None:
    reads = _reads(query)
    assert reads
    for use in reads:
        assert use.series in FAMILIES, use.series
        unknown = use.labels - _labels_of(FAMILIES[use.series], use.series)
        if use.series == Operator.LEADER.name:
            unknown -= {NAMESPACE, SERVICE}  # only its `and` partner is grouped by them
        assert not unknown, f"{use.series} has no label {unknown}"


@pytest.mark.parametrize("query", QUERIES, ids=_identity)
def test_a_query_treats_each_series_as_its_kind_asks(query: PanelQuery) -> None:
    for use in _reads(query):
        kind = FAMILIES[use.series].kind
        if kind is Kind.GAUGE:
            assert not use.functions, f"{use.series} is a gauge inside {use.functions}"
        else:
            assert use.functions[-1] in RATED, f"{use.series} only ever grows"
        if kind is Kind.HISTOGRAM:
            assert (use.series.endswith("_bucket"), use.functions[0]) == (True, "histogram_quantile")
            assert "le" in use.labels
        else:
            assert "histogram_quantile" not in use.functions


@pytest.mark.parametrize("query", QUERIES, ids=_identity)
def test_a_legend_names_only_labels_that_the_query_keeps(query: PanelQuery) -> None:
    kept = {label for use in _reads(query) for label in use.labels}
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= kept


@pytest.mark.parametrize("query", QUERIES, ids=_identity)
def test_an_absent_series_looks_absent(query: PanelQuery) -> None:
    assert "vector(" not in query.expr
    assert "absent" not in query.expr


@pytest.mark.parametrize("query", QUERIES, ids=_identity)
def test_every_series_about_a_service_is_narrowed_to_the_chosen_ones(query: PanelQuery) -> None:
    for use in uses(resolved(query.expr, range_s=60)):
        metric = FAMILIES[use.series]
        if metric in ENGINE or SERVICE in metric.labels:
            assert f'{use.series}{{{NAMESPACE}=~"$namespace", {SERVICE}=~"$service"' in query.expr


def test_an_expression_of_the_wrong_kind_or_label_is_refused() -> None:
    with pytest.raises(ValueError, match="is a gauge, not a counter"):
        rate(Engine.REQUESTS_RUNNING)
    with pytest.raises(ValueError, match="is a gauge, not a counter"):
        total(Engine.REQUESTS_RUNNING)
    with pytest.raises(ValueError, match="is a counter, not a histogram"):
        quantile(Engine.REQUESTS, 0.5)
    with pytest.raises(ValueError, match="has no label outcom"):
        selector(Engine.REQUESTS, outcom="error")


def test_the_reader_of_queries_sees_every_series_with_its_labels_and_functions() -> None:
    found = uses('sum by (a) (rate(x{b="c"}[5m])) / on (d) max_over_time((-y)[1h:1m]) > 3')
    assert found == [Use("x", frozenset("abd"), ("rate",)), Use("y", frozenset("d"), ("max_over_time",))]
