"""InferenceServices from YAML, read more strictly than the API server does: an unknown field is an error."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pagefleet_api import labels, schema
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_api.wording import shown
from pagefleet_cli.errors import InputWrong
from pagefleet_cli.strict import faults

STDIN = "-"
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
        meta, found = body.get("metadata") or {}, faults(body)
        told = [*_faults_of_names(meta), *found.unknown, *found.mistyped]
        try:
            if not found.mistyped:
                services.append(Document(InferenceService.parse(_complete(body, meta)), body))
        except InvalidService as error:
            told += str(error).splitlines()
        problems += [f"{name}: {line}" for line in told]
    if problems:
        raise InputWrong("\n".join(problems))
    if not services:
        raise InputWrong(f"{file}: no {labels.KIND} of {labels.API_VERSION} is in it; see examples/ for some")
    return services


def _parsed(file: str) -> list[Any]:
    try:
        text = sys.stdin.read() if file == STDIN else Path(file).read_text()
        return list(yaml.safe_load_all(text))
    except OSError as error:
        raise InputWrong(f"{file}: {error.strerror}; give a YAML file with an {labels.KIND}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, a date such as 2024-99-99, a number too long
        raise InputWrong(f"{file}: this is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise InputWrong(f"{file}: it is nested deeper than any Kubernetes object") from error


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


def _complete(body: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """With what the API server would add; of the metadata only names say anything here."""
    name, namespace = meta.get("name") or "", meta.get("namespace") or "default"
    return {**body, "metadata": {"uid": "", "name": str(name), "namespace": str(namespace)}}


_FORMS = {"name": (schema.OBJECT_NAME, 253), "namespace": (schema.NAMESPACE, 63)}
"""And the most characters (RFC 1123 subdomain and label)."""


def _faults_of_names(meta: Mapping[str, Any]) -> Iterator[str]:
    """As the API server asks of every object."""
    if not meta.get("name"):
        yield "metadata.name is absent; give the service a name"
    for field, (form, most) in _FORMS.items():
        given = meta.get(field) or None
        if given is None:
            continue
        if not isinstance(given, str):
            yield f"metadata.{field} is {shown(given)}, no text; put it in quotes"
        elif not form.fits(given):
            yield f"metadata.{field} {form.says}; it is {shown(given)}"
        elif len(given) > most:
            yield f"metadata.{field} has {len(given)} characters, and at most {most} may be; shorten it"
