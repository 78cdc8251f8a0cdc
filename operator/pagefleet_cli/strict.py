"""Fields that the resource does not have: the API server drops them with a warning, here they are errors. Pure."""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pagefleet_api.crd import custom_resource_definition

Schema = Mapping[str, Any]


def unknown_fields(body: Mapping[str, Any]) -> list[str]:
    """A line for each unknown field: its path, and the field that may have been meant."""
    return [f"{path} is not a field{_meant(path, beside)}" for path, beside in _unknown(body, _schema(), "")]


@cache
def _schema() -> Schema:
    schema: Schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _unknown(value: Any, schema: Schema, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Paths that the schema does not know, each with the paths that are allowed in its place."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _unknown(item, schema.get("items", {}), f"{path}[{place}]")
    properties = schema.get("properties")
    if not isinstance(value, Mapping) or properties is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, child in value.items():
        if name in properties:
            yield from _unknown(child, properties[name], _join(path, name))
        else:
            yield _join(path, str(name)), tuple(_join(path, known) for known in properties)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _meant(path: str, beside: tuple[str, ...]) -> str:
    """The same name in another place, or else the nearest in this one."""
    name = path.rpartition(".")[2].lower()
    elsewhere = next((known for known in _paths(_schema(), "") if known.rpartition(".")[2].lower() == name), None)
    by_name = {known.rpartition(".")[2].lower(): known for known in beside}
    near = [by_name[found] for found in difflib.get_close_matches(name, by_name, n=1)]
    if elsewhere or near:
        return f"; did you mean {elsewhere or near[0]}?"
    return f"; there are {', '.join(known.rpartition('.')[2] for known in beside)}"


def _paths(schema: Schema, path: str) -> Iterator[str]:
    """Every path of the spec."""
    for name, child in schema.get("properties", {}).items():
        if not path and name != "spec":
            continue
        yield _join(path, name)
        yield from _paths(child.get("items", child), _join(path, name) + ("[]" if "items" in child else ""))
