"""InferenceServices from YAML, read more strictly than the API server does: an unknown field is an error."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pagefleet_api import labels
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_cli.errors import InputWrong
from pagefleet_cli.strict import unknown_fields

STDIN = "-"
_MOST_CHARACTERS, _MOST_NODES = 16 << 20, 1_000_000
Completed = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Document(NamedTuple):
    """An InferenceService, and the whole object as it was written."""

    service: InferenceService
    body: Mapping[str, Any]


def read_services(file: str) -> list[InferenceService]:
    """Every InferenceService of a file (`-`: standard input); objects of other kinds are passed over.

    Raises InputWrong with a line for each thing that is wrong.
    """
    return [document.service for document in read_documents(file)]


def read_documents(file: str, completed: Completed = dict) -> list[Document]:
    """The same with the objects; `completed` may make an object of what is none before it is read."""
    problems: list[str] = []
    services: list[Document] = []
    for body in map(completed, _objects(file, _parsed(file))):
        kind, version = body.get("kind"), body.get("apiVersion")
        if kind != labels.KIND:
            continue
        if not isinstance(body.get("metadata") or {}, Mapping):
            problems.append(f"{file}: {kind}: metadata must be an object with name and maybe namespace")
            continue
        name = f"{file}: {kind} {(body.get('metadata') or {}).get('name', '(without a name)')}"
        if version != labels.API_VERSION:
            problems.append(f"{name}: apiVersion is {version!r}; this program reads {labels.API_VERSION}")
            continue
        found = [f"{name}: {problem}" for problem in unknown_fields(body)]
        try:
            services.append(Document(InferenceService.parse(_complete(body)), body))
        except InvalidService as error:
            found += [f"{name}: {line}" for line in str(error).splitlines()]
        problems += found
    if problems:
        raise InputWrong("\n".join(map(_printable, problems)))
    if not services:
        raise InputWrong(f"{file}: no {labels.KIND} of {labels.API_VERSION} is in it; see examples/ for some")
    return services


def _printable(line: str) -> str:
    """One line on a terminal, whatever names a file has given to its fields."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def _parsed(file: str) -> list[Any]:
    try:
        with contextlib.nullcontext(sys.stdin) if file == STDIN else Path(file).open(encoding="utf-8") as opened:
            text = opened.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise InputWrong(f"{file}: it is longer than {_MOST_CHARACTERS:,} characters; give InferenceServices alone")
        return list(_loaded(file, text))
    except OSError as error:
        raise InputWrong(f"{file}: {error.strerror}; give a YAML file with an {labels.KIND}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, a date such as 2024-99-99, a number too long
        if "integer string conversion" in str(error):
            raise InputWrong(f"{file}: a number in it has thousands of digits, which no field takes") from error
        raise InputWrong(f"{file}: this is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise InputWrong(f"{file}: it is nested deeper than any Kubernetes object") from error


def _loaded(file: str, text: str) -> Iterator[Any]:
    """Every document. Raises InputWrong where aliases stand for more than anybody writes, or for themselves: whoever
    reads the objects goes through all of it.
    """
    loader, nodes = yaml.SafeLoader(text), 0
    try:
        while loader.check_node() and (node := loader.get_node()) is not None:
            nodes += _expanded(file, node, {})
            if nodes > _MOST_NODES:
                words = f"its aliases stand for more than {_MOST_NODES:,} values; write out what is meant"
                raise InputWrong(f"{file}: {words}")
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded(file: str, node: yaml.Node, known: dict[int, int | None]) -> int:
    """Values below a node and itself, those that aliases stand for counted each time."""
    if id(node) in known:
        size = known[id(node)]
        if size is None:
            raise InputWrong(f"{file}: an alias stands inside of what it names; no object is part of itself")
        return size
    known[id(node)] = None
    children = node.value if isinstance(node, yaml.CollectionNode) else ()
    flat = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
    size = 1 + sum(_expanded(file, child, known) for child in flat)
    known[id(node)] = size
    return size


def _objects(file: str, documents: list[Any], *, listed: bool = False) -> Iterator[Mapping[str, Any]]:
    """Objects, those inside of Lists too; a List in a List is none that Kubernetes knows."""
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, Mapping):
            raise InputWrong(
                f"{file}: {str(document)[:40]!r} is no Kubernetes object; write apiVersion, kind, metadata"
            )
        items = document.get("items")
        if not listed and str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            yield from _objects(file, items, listed=True)
        else:
            yield document


def _complete(body: Mapping[str, Any]) -> dict[str, Any]:
    """With what the API server would add."""
    given = body.get("metadata") or {}
    if not given.get("name"):
        raise InvalidService("metadata.name is absent; give the service a name")
    meta = {"uid": "", **given, "namespace": given.get("namespace") or "default"}
    for field in ("name", "namespace"):
        if not isinstance(meta[field], str):
            raise InvalidService(f"metadata.{field} is {meta[field]!r}, no text; put it in quotes")
    return {**body, "metadata": meta}
