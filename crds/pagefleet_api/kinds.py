"""What a value may be, in words, by the schema that the API server has: the same for all who refuse one. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A type of values."""

    words: str
    holds: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    """2.0 too. Source: `IsFloat64AJSONInteger` in kube-openapi/pkg/validation/validate."""
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


_KINDS = {
    "string": Kind("text in quotes", lambda value: isinstance(value, str)),
    "integer": Kind("a whole number", _is_whole),
    "boolean": Kind("true or false", lambda value: isinstance(value, bool)),
    "object": Kind("an object, which has fields", lambda value: isinstance(value, Mapping)),
    "array": Kind("a list", lambda value: isinstance(value, list)),
}
_UNQUOTED = ("integer", "boolean")
_FORM = "must be "
"""How the refusal of a value of another form begins."""


def holds(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value has one of the types that it may have; the API server converts none to another."""
    kinds = _kinds(schema)
    return not kinds or any(_KINDS[kind].holds(value) for kind in kinds)


def takes(schema: Mapping[str, Any], name: str | int, value: Any) -> str:
    """What the field of that name takes, for who gave `value`: "a whole number of seconds from 0 to 60"."""
    kinds, form = _kinds(schema), _form(schema)
    if len(kinds) > 1 and form:
        return form + (", in quotes" if isinstance(value, float) else "")
    words = " or ".join(_KINDS[kind].words for kind in kinds) or "another value"
    if kinds == ["string"] and form:
        words += f": {form}"
    if kinds == ["integer"]:
        words += (" of seconds" if str(name).endswith("Seconds") else "") + _bounds(schema)
    return words + (", without quotes" if kinds and kinds[0] in _UNQUOTED and isinstance(value, str) else "")


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """The types that a value may have; none where any may be."""
    if schema.get("x-kubernetes-int-or-string"):
        return ["integer", "string"]
    return [schema["type"]] if "type" in schema else []


def _form(schema: Mapping[str, Any]) -> str | None:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    said = (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    return next((words.removeprefix(_FORM) for words in said if words.startswith(_FORM)), None)


def _bounds(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None or most is None:
        return "" if least is None else f" from {least} on"
    return f" from {least} to {most}"
