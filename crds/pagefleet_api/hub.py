"""What every field says alike that names something on Hugging Face's hub."""

from typing import Annotated, Any

from pydantic import Field

from pagefleet_api.schema import Shaped

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
