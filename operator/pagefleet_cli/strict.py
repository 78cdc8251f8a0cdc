"""The form of an object as the CRD has it: the types of values, and no field that the API server would drop. Pure."""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from pagefleet_api import kinds
from pagefleet_api.crd import custom_resource_definition
from pagefleet_api.wording import shown

Schema = Mapping[str, Any]


class Faults(NamedTuple):
    """Of an object, a line for each, with its path."""

    unknown: list[str]
    """Fields that there are not, and which may have been meant."""
    mistyped: list[str]
    """Values of another type than the field's, of which the API server converts none."""


def faults(body: Mapping[str, Any]) -> Faults:
    """What is wrong with an object's form, before anything is looked at that its values say; its status is not read."""
    found = Faults([], [])
    _look({name: part for name, part in body.items() if name != "status"}, _schema(), "", found)
    return found


@cache
def _schema() -> Schema:
    schema: Schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _look(value: Any, schema: Schema, path: str, found: Faults) -> None:
    if value is None:  # as if it were not there
        return
    if not kinds.holds(schema, value):
        takes = kinds.takes(schema, path.rpartition(".")[2], value)
        found.mistyped.append(f"{path} must be {takes}; it is {shown(value)}")
        return
    if isinstance(value, list):
        for place, item in enumerate(value):
            _look(item, schema.get("items", {}), f"{path}[{place}]", found)
    if isinstance(value, Mapping):
        _look_inside(value, schema, path, found)


def _look_inside(value: Mapping[str, Any], schema: Schema, path: str, found: Faults) -> None:
    properties = schema.get("properties")
    if properties is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        for name, child in value.items():
            _look(child, schema.get("additionalProperties", {}), _join(path, str(name)), found)
        return
    for name, child in value.items():
        if name in properties:
            _look(child, properties[name], _join(path, name), found)
        else:
            at, beside = _join(path, str(name)), tuple(_join(path, known) for known in properties)
            found.unknown.append(f"{at} is not a field{_meant(at, beside)}")


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
