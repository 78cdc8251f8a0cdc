"""Fields that must go together: who wrote several that do not is told of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationInfo, model_validator

from pagefleet_api.schema import Model, Rule, joint
from pagefleet_api.wording import place

_LATER = object()
"""Pydantic's context while types are made that need not agree yet."""


class Disagreement(ValueError):
    """Fields that do not go together; `refusals` are why, each with the way out."""

    def __init__(self, refusals: tuple[str, ...]) -> None:
        super().__init__("; ".join(refusals))
        self.refusals = refusals


class Agreeing(Model):
    """Base of a type whose fields must go together: `_refusals` are why they do not."""

    @model_validator(mode="after")
    def _agrees(self, info: ValidationInfo) -> Self:
        refusals = () if info.context is _LATER else tuple(self._refusals())
        if refusals:
            raise Disagreement(refusals)
        return self

    def _refusals(self) -> Iterator[str]:
        """What does not go together, in words."""
        raise NotImplementedError


def disagreements(kind: type[Model], given: Any, root: str) -> Iterator[tuple[str, str]]:
    """All that does not go together in what each part of it can be, with its path, as the API server tells it.

    Pydantic stops at parts that do not agree, before it looks at what they are parts of. Raises its ValidationError
    where a part cannot be what it should.
    """
    yield from _disagreements(kind.model_validate(given, context=_LATER), (), root)


def _disagreements(part: Any, path: tuple[str | int, ...], root: str) -> Iterator[tuple[str, str]]:
    if isinstance(part, tuple):
        for index, item in enumerate(part):
            yield from _disagreements(item, (*path, index), root)
    if isinstance(part, Model):
        for name, field in type(part).model_fields.items():
            yield from _disagreements(getattr(part, name), (*path, field.alias or name), root)
    if isinstance(part, Agreeing):
        for refusal in part._refusals():
            yield place(path, root), refusal


@dataclass(frozen=True)
class Ordered:
    """Two numbers of one object of which the first must not be above the second, where both are given."""

    low: str
    high: str

    def refusals(self, low: int | None, high: int | None) -> Iterator[str]:
        """What is wrong with these two numbers."""
        if low is not None and high is not None and low > high:
            yield self._words.format(low, high)

    @property
    def rule(self) -> Rule:
        """The same for the API server."""
        low, high = f"self.{self.low}", f"self.{self.high}"
        sound = f"!has({low}) || !has({high}) || {low} <= {high}"
        return joint(sound, self._words, low, high, field=self.low)

    @property
    def _words(self) -> str:
        return f"{self.low} {{}} must not be above {self.high} {{}}; lower {self.low} or raise {self.high}"
