"""Queries are found and filled as Grafana does it."""

import pytest

from e2e.panels import PanelQuery, fill, queries


def test_queries_are_found_in_rows_too() -> None:
    target = {"expr": "up", "legendFormat": "all"}
    dashboard = {"panels": [{"title": "a", "targets": [target]}, {"panels": [{"title": "b", "targets": [target]}]}]}
    assert queries(dashboard) == [PanelQuery("a", "up", "all"), PanelQuery("b", "up", "all")]


@pytest.mark.parametrize(
    ("expression", "filled"),
    [
        ('up{x=~"$name"}[$__range]', 'up{x=~"n"}[60s]'),
        ("up[${__range}]", "up[60s]"),
        ('up{x=~"${name:regex}"}', 'up{x=~"n"}'),
        ("$__range_s", None),
    ],
)
def test_every_form_of_a_variable_is_filled_and_an_unknown_one_is_an_error(expression: str, filled: str | None) -> None:
    variables = {"name": "n", "__range": "60s"}
    if filled is None:
        with pytest.raises(KeyError, match="__range_s"):
            fill(expression, variables)
    else:
        assert PanelQuery("", expression, "").filled(variables) == filled
