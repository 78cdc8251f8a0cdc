"""What clients call what is served here."""

from typing import NamedTuple

from pagefleet_engine.api.errors import ModelUnknown
from pagefleet_engine.api.fields import shown


def served_name(name: str | None, uri: str) -> str:
    """The name that clients use: the one given, else the last path part of the URI."""
    return name or uri.rstrip("/").rpartition("/")[2]


class ServedNames(NamedTuple):
    """What a request may name as its model: the model itself, or one of the launch's adapters, in its order."""

    model: str
    adapters: tuple[str, ...] = ()

    def adapter(self, name: str | None) -> int | None:
        """The adapter that answers, by its place; None is the model itself, also where no name is given.

        Raises `ModelUnknown`.
        """
        if name is None or name == self.model:
            return None
        if name not in self.adapters:
            there = ", ".join(shown(each) for each in (self.model, *self.adapters))
            raise ModelUnknown(f"The model {shown(name)} does not exist here; this server has {there}.", param="model")
        return self.adapters.index(name)
