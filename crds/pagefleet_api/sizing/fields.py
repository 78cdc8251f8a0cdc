"""Reading a config.json whose families name the same thing differently."""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


class ConfigUnusable(ValueError):
    """A model's file lacks a size, or holds one that cannot be; the text names the field and its value."""


_MOST = 10**12
"""No size in a config.json has as many; beyond it, arithmetic with floats ends."""


def value(config: Config, *names: str) -> Any:
    """The first of `names` that is there and not null, or None."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def count(config: Config, *names: str, default: int | None = None) -> int:
    """A whole number from 1 to 10^12 under the first of `names` that is there. Raises ConfigUnusable."""
    found = value(config, *names)
    found = default if found is None else found
    if isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= _MOST:
        return found
    too_large = isinstance(found, int) and found > _MOST
    said = "absent" if found is None else "above 10^12" if too_large else repr(found)
    raise ConfigUnusable(f"config.json: {names[0]} is {said}; a whole number of at least 1 is needed")


def whole(config: Config, name: str) -> int:
    """A whole number, 0 when absent. Raises ConfigUnusable."""
    return 0 if not config.get(name) else count(config, name)
