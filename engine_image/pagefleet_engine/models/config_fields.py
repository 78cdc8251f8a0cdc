"""Typed reading of a model's configuration; what is missing or odd is refused by name."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported

MOST_BYTES = 64 << 20
"""Of a file that is read whole. The largest are tokenizer_config.json of models of speech and pictures: each added
token takes some 190 bytes there, and models have 130,000 of them."""
_TOO_MUCH = 2**63
"""What tensors' sizes and positions are counted in has no room for it."""
_MOST_LAYERS = 10_000
"""Each is kept by itself, so a number without bounds would take all memory before it is told of."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of one configuration; `origin` names it in errors."""

    origin: str
    values: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Whether `name` is there and not null."""
        return self.values.get(name) is not None

    def whole(self, name: str) -> int:
        """A whole number of at least 0."""
        return 0 if self.values.get(name) == 0 else self.count(name)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1, which 63 bits can hold."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _TOO_MUCH:
            raise self.refusal(name, "a whole number of at least 1 is needed, and below 2 to the 63rd")
        return value

    def layers(self, name: str) -> int:
        """How many layers a model has."""
        found = self.count(name)
        if found > _MOST_LAYERS:
            raise self.refusal(name, f"{_MOST_LAYERS} layers are the most")
        return found

    def first(self, *names: str) -> str:
        """The first of `names` that is there, or else the first of all."""
        return next((name for name in names if self.has(name)), names[0])

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(name)
        value = default if value is None else value
        if not _is_positive(value):
            raise self.refusal(name, "a number above 0 is needed")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """As `number`, or None when absent."""
        return self.number(name) if self.has(name) else None

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers above 0."""
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count or not all(map(_is_positive, value)):
            raise self.refusal(name, f"a list of {count} numbers above 0 is needed")
        return tuple(float(item) for item in value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(name, "true or false is needed")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.values.get(name)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if any(not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < _TOO_MUCH for item in listed):
            raise self.refusal(name, "a token id or a list of them is needed")
        return tuple(listed)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse every value but `allowed`; absent is fine."""
        if self.has(name) and self.values[name] not in allowed:
            choices = " or ".join(repr(value) for value in allowed)
            raise self.refusal(name, f"this engine runs only {choices}")

    def refusal(self, name: str, reason: str) -> ModelUnsupported:
        """The error for a field: its name, its value and what was expected."""
        said = repr(self.values[name]) if name in self.values else "absent"
        return ModelUnsupported(f"{self.origin}: {name} is {said}; {reason}")


def _is_positive(value: Any) -> TypeGuard[float]:
    """Whether it is a number above 0 that a double can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises ModelBroken when it is not one, or is larger than `MOST_BYTES`."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ModelBroken(f"{path} is larger than {MOST_BYTES >> 20} MiB, which no configuration is")
        value = json.loads(text)
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelBroken(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelBroken(f"{path} holds no JSON object")
    return value


def unique(*groups: tuple[int, ...]) -> tuple[int, ...]:
    """All ids in order, each once."""
    return tuple(dict.fromkeys(token_id for group in groups for token_id in group))


def checked(origin: str, config: ModelConfig) -> ModelConfig:
    """`config`, when its sizes fit each other; raises ModelUnsupported otherwise."""
    if config.heads % config.kv_heads:
        raise ModelUnsupported(
            f"{origin}: {config.heads} attention heads cannot share {config.kv_heads} KV heads evenly"
        )
    if config.head_size % 2:
        raise ModelUnsupported(f"{origin}: rotary embedding needs an even head size, it is {config.head_size}")
    return config
