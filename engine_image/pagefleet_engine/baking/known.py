"""The cards and models that kernels can be compiled for by name; another model by its config.json."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pagefleet_engine.baking.absent import Card
from pagefleet_engine.models import config_json
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_fields import read_json


class Subject(NamedTuple):
    """A model, and how many GPUs share one copy of it."""

    name: str
    config: ModelConfig
    tensor_parallel: int


class UnknownName(Exception):
    """No card or model of that name; the message says which there are."""


def card(name: str) -> Card:
    """The card of a name. Raises UnknownName."""
    facts = _entry("cards", "card", name)
    return Card(name, tuple(facts["capability"]), facts["multiprocessors"], facts["sharedBytes"])


def subject(text: str) -> Subject:
    """`NAME` or the path of a config.json, then `/N` for N GPUs. Raises UnknownName, or ModelError for a bad file."""
    name, _, given = text.rpartition("/") if text.rpartition("/")[2].isdecimal() else (text, "", "1")
    gpus = int(given)
    if gpus == 0:
        raise UnknownName(f"model {text!r} is on no GPU: give at least 1 after the /, or neither")
    if name.endswith(".json"):
        return Subject(name, config_json.from_json(name, read_json(Path(name)), {}), gpus)
    return Subject(name, config_json.from_json(name, _entry("models", "model", name), {}), gpus)


def _entry(kind: str, word: str, name: str) -> Mapping[str, Any]:
    known = json.loads(resources.files(__package__).joinpath("known.json").read_text())[kind]
    if name not in known:
        raise UnknownName(f"{word} {name!r} is none of {', '.join(known)}")
    found: Mapping[str, Any] = known[name]
    return found
