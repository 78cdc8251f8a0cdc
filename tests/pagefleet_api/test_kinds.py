"""What a field takes, in words: for each field of the resource, and each value of another type."""

from typing import Any

import pytest

from pagefleet_api import kinds
from pagefleet_api.service import InferenceService, InvalidService, Spec
from pagefleet_api.structural import inside, structural
from tests.pagefleet_api.test_service import body, nodes

_OTHERS: tuple[Any, ...] = (5, 1.5, True, "text", [], {})
_PODS = ".podTemplate"


@pytest.mark.parametrize("value", _OTHERS, ids=repr)
def test_a_value_of_another_type_is_told_with_what_the_field_takes(value: Any) -> None:
    for path, schema in nodes(structural(Spec)):
        name = path.rpartition(".")[2].removesuffix("[]")
        if not kinds.holds(schema, value):
            said = kinds.takes(schema, name, value)
            assert said.startswith(("text", "a ", "true", "an ", "at least", "DOMAIN", "the ")), (path, said)


def _set(path: str, value: Any) -> dict[str, Any]:
    names = path.removeprefix(".").split(".")
    for name in reversed(names):
        inner = value
        value = {name.removesuffix("[]"): [inner] if name.endswith("[]") else inner}
    given: dict[str, Any] = value
    return given


_PLAIN = [path for path, _ in nodes(structural(Spec)) if path and "[]" not in path and not path.startswith(_PODS)]


@pytest.mark.parametrize("path", _PLAIN)
@pytest.mark.parametrize("value", [[1], {"a": 1}], ids=repr)
def test_the_parser_says_so_in_no_words_of_a_library(path: str, value: Any) -> None:
    schema = inside(structural(Spec), path.removeprefix(".").split("."))
    if kinds.holds(schema, value):
        return
    with pytest.raises(InvalidService) as refusal:
        InferenceService.parse(body(**_set(path, value)))
    line = next(line for line in str(refusal.value).splitlines() if line.startswith(f"spec{path}: "))
    assert "nput" not in line
    assert ": must be " in line
