"""The generated JSON: up to date, portable, and each panel says what to do."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dashboards.files import FILES, FOLDER, text
from pagefleet_api.metrics import NAMESPACE, SERVICE

DASHBOARDS = {name: json.loads((FOLDER / name).read_text()) for name in FILES}
PANELS = [panel for board in DASHBOARDS.values() for panel in board["panels"] if panel["type"] != "row"]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _objects(child)


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_what_the_python_makes(name: str) -> None:
    assert (FOLDER / name).read_text() == text(name), "python -m dashboards writes it anew"


@pytest.mark.parametrize("name", FILES)
def test_every_data_source_is_the_chosen_one(name: str) -> None:
    sources = [value["datasource"] for value in _objects(DASHBOARDS[name]) if value.get("datasource")]
    assert {source["uid"] for source in sources} == {"${datasource}"}
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("name", FILES)
def test_namespace_and_service_can_be_chosen_and_begin_with_all(name: str) -> None:
    variables = {variable["name"]: variable for variable in DASHBOARDS[name]["templating"]["list"]}
    assert list(variables) == ["datasource", "namespace", "service"]
    for variable, label in (("namespace", NAMESPACE), ("service", SERVICE)):
        assert variables[variable]["query"].endswith(f", {label})")
        assert variables[variable]["includeAll"]
        assert variables[variable]["multi"]
        assert variables[variable]["current"]["value"] == "$__all"
    assert f'{NAMESPACE}=~"$namespace"' in variables["service"]["query"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_has_a_unit_and_a_description_that_says_what_to_do(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len(panel["description"]) > 60
    assert panel["description"].endswith(".")


@pytest.mark.parametrize("name", FILES)
def test_panels_have_ids_of_their_own_and_do_not_lie_on_each_other(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    cells = [
        (position["x"] + x, position["y"] + y)
        for position in (panel["gridPos"] for panel in panels)
        for x in range(position["w"])
        for y in range(position["h"])
    ]
    assert len(cells) == len(set(cells))
    assert {0 <= x < 24 for x, _ in cells} == {True}


def test_titles_are_unique_so_that_a_panel_can_be_named_on_the_telephone() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len(titles) == len(set(titles))
