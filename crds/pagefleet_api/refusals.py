"""What is wrong with a given object, in lines: the field's path, what the field takes, and the value that was given."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from pagefleet_api import kinds
from pagefleet_api.agreement import Disagreement, disagreements
from pagefleet_api.schema import Model
from pagefleet_api.structural import Schema, inside, structural
from pagefleet_api.wording import brief, place, shown

_LINES, LINE_CHARACTERS = 20, 1000
"""Of words about faults: a condition takes 32,768 characters, and what a user gave may be in each line."""
_OF_ANOTHER_KIND = ("_type", "_parsing", "_from_float", "_parsing_size", "_than_equal")
"""How pydantic's names of faults end that are told by what the field takes instead."""

T = TypeVar("T", bound=Model)


class InvalidService(ValueError):
    """An object that is not a usable InferenceService; the text names each field and what it takes."""


def usable(kind: type[T], given: Any, root: str) -> T:
    """`given` as what it should be; `root` is its path.

    Raises InvalidService with one line a problem: of very many the first, and long values without their middle.
    """
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        lines = [brief(line, LINE_CHARACTERS) for line in _lines(kind, given, root, error)]
        more = [f"{len(lines) - _LINES} more like these"] if len(lines) > _LINES else []
        raise InvalidService("\n".join([*lines[:_LINES], *more])) from error


def _lines(kind: type[Model], given: Any, root: str, error: ValidationError) -> list[str]:
    try:
        return [f"{path}: {refusal}" for path, refusal in disagreements(kind, given, root)]
    except ValidationError:  # a part is not what it should be, so that what it is part of cannot be looked at
        return [*_described(kind, root, error)]


def _described(kind: type[Model], root: str, error: ValidationError) -> Iterator[str]:
    problems = error.errors(include_url=False)
    within = {problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))}
    for problem in problems:
        if problem["type"] == "too_short" and problem["loc"] in within:
            continue  # it was counted without the items that the other lines are about
        path, reason = place(problem["loc"], root), problem.get("ctx", {}).get("error")
        if isinstance(reason, Disagreement):
            yield from (f"{path}: {refusal}" for refusal in reason.refusals)
            continue
        told = problem["type"] == "missing" or isinstance(problem["input"], dict)  # of several fields: the words do
        yield f"{path}: {_words(kind, problem)}" + ("" if told else f" (given: {shown(problem['input'])})")


def _words(kind: type[Model], problem: Mapping[str, Any]) -> str:
    if problem["type"].endswith(_OF_ANOTHER_KIND):
        schema = inside(_schema(kind), problem["loc"])
        return f"must be {kinds.takes(schema, problem['loc'][-1] if problem['loc'] else '', problem['input'])}"
    words = str(problem["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    for theirs, ours in _OURS.items():
        words = words.replace(theirs, ours)
    return words


_OURS = {
    "Tuple should": "the list should",
    "Input should be": "must be",
    "String should": "must",
    "Dictionary should": "must",
    "Field required": "is required",
}


@cache
def _schema(kind: type[Model]) -> Schema:
    return structural(kind)
