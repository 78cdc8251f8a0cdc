"""What every field says alike that names something on Hugging Face's hub."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from pagefleet_api.schema import Rule, Shaped, joint

Revision = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Shaped(
        r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        "letters, digits, ., _, / and -, with a letter or digit first, for example main",
    ),
]


def revision_of(kept: str) -> Any:
    """The field for a revision; `kept` is what a commit keeps the same on every pod."""
    return Field(
        None,
        description=f"Commit, tag or branch on the hub; a commit keeps every pod on the same {kept}. hf:// only.",
    )


_NOT_OF_THE_HUB = (
    "{}.revision {{}} is for hf:// alone, not for uri {{}}; leave it out, and put the version into the path of other "
    "URIs"
)


def revision_rule(place: str) -> Rule:
    """On an object with `uri` and `revision`; `place` is its own path, with {} for its name where it is one of many."""
    words, names = _NOT_OF_THE_HUB.format(place), ("self.name",) * place.count("{}")
    sound = "!has(self.revision) || self.uri.startsWith('hf://')"
    plain = words.replace("[{}]", "").replace(" {}", "")
    return joint(sound, words, *names, "self.revision", "self.uri", field="revision", plain=plain)


def revision_refusals(place: str, uri: str, revision: str | None) -> Iterator[str]:
    """The same for the parser; `place` has its name."""
    if revision is not None and not uri.startswith("hf://"):
        yield _NOT_OF_THE_HUB.format(place).format(revision, uri)
