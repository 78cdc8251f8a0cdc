"""The chart's values and files agree with each other; needs no Helm."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from pagefleet_api.crd import custom_resource_definition
from tests.charts.helm import CHART, ROOT, StrictLoader

VALUES = yaml.load((CHART / "values.yaml").read_text(), StrictLoader)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def _objects(schema: dict[str, Any], path: str = "values") -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in schema:
        yield path, schema
        for name, child in schema["properties"].items():
            yield from _objects(child, f"{path}.{name}")


def test_the_chart_carries_the_generated_crd_byte_for_byte() -> None:
    assert (CHART / "files/inferenceservices.yaml").read_bytes() == (ROOT / "crds/inferenceservices.yaml").read_bytes()


def test_the_carried_crd_is_what_the_types_say() -> None:
    assert yaml.safe_load((CHART / "files/inferenceservices.yaml").read_text()) == custom_resource_definition()


def test_every_value_with_a_default_is_in_the_schema_and_the_other_way_round() -> None:
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)
    for path, schema in _objects(SCHEMA):
        _, *names = path.split(".")
        if names and names != ["resources"]:
            assert set(schema["properties"]) == set(VALUES[names[0]]), path


def test_no_object_of_the_schema_lets_an_unknown_name_through() -> None:
    assert [path for path, schema in _objects(SCHEMA) if schema.get("additionalProperties") is not False] == []


def test_the_chart_has_the_version_of_the_distribution() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["version"]}"\n' in project
    assert chart["appVersion"] == chart["version"]
