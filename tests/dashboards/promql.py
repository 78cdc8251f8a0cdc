"""What a PromQL expression reads, by parsing it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import promql_parser as promql


@dataclass(frozen=True, slots=True)
class Use:
    """One series that an expression reads: `labels` are all that it is matched or grouped by on the way out."""

    series: str
    labels: frozenset[str]
    functions: tuple[str, ...]
    """Functions around it, the outermost first."""


def uses(expr: str) -> list[Use]:
    """Every series that `expr` reads. Raises ValueError when it does not parse."""
    return list(_walk(promql.parse(expr), Use("", frozenset(), ())))


def _walk(node: Any, around: Use) -> Iterator[Use]:
    match node:
        case promql.VectorSelector():
            matched = frozenset(matcher.name for matcher in node.matchers.matchers)
            yield replace(around, series=str(node.name), labels=around.labels | matched)
        case promql.MatrixSelector():
            yield from _walk(node.vector_selector, around)
        case promql.Call():
            for argument in node.args:
                yield from _walk(argument, replace(around, functions=(*around.functions, node.func.name)))
        case promql.AggregateExpr():
            grouped = frozenset(node.modifier.labels) if node.modifier else frozenset()
            yield from _walk(node.expr, replace(around, labels=around.labels | grouped))
        case promql.BinaryExpr():
            matching = node.modifier.matching if node.modifier else None
            inner = replace(around, labels=around.labels | frozenset(matching.labels if matching else ()))
            yield from _walk(node.lhs, inner)
            yield from _walk(node.rhs, inner)
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            yield from _walk(node.expr, around)
        case promql.NumberLiteral() | promql.StringLiteral():
            return
        case _:
            raise TypeError(f"unknown node {type(node).__name__}")
