"""Which test files a run with `-m` has to read: reading one imports all that it tests, torch at worst."""

import itertools
import re

from _pytest.mark.expression import Expression

MARKS = ("torch", "apiserver", "gpu", "e2e")
_WHOLE_FILE = re.compile(r"^pytestmark = (\[.*?\]$|[^\n]*)", re.MULTILINE | re.DOTALL)


def may_select(expression: str, source: str) -> bool:
    """Whether `-m expression` may select a test of a file of the text `source`.

    Of MARKS, those that `source` gives to the whole file are on every test of it, those that it does not name on none,
    and others may be. Marks of other names may be on any test.
    """
    names = sorted(set(re.findall(r"\w+", expression)) - {"and", "or", "not"})
    worlds = itertools.product(*(_may_be_marked(name, source) for name in names))
    return any(_selects(expression, set(marks)) for marks in worlds)


def _selects(expression: str, marks: set[str]) -> bool:
    def marked(name: str, /, **_: str | int | bool | None) -> bool:
        return name in marks

    return Expression.compile(expression).evaluate(marked)


def _may_be_marked(name: str, source: str) -> tuple[str, ...]:
    """What may stand for `name` among a test's marks: itself, nothing, or one of the two."""
    mark = re.compile(rf"pytest\.mark\.{name}\b")
    if name in MARKS and any(mark.search(marks) for marks in _WHOLE_FILE.findall(source)):
        return (name,)
    return (name, "") if name not in MARKS or mark.search(source) else ("",)
