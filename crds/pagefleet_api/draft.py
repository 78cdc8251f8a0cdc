"""`spec.model.draft`: a smaller model that guesses for the model, where `engine.speculative.method` is draft."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from pagefleet_api import model_uri
from pagefleet_api.hub import Revision, revision_of, revision_refusals, revision_rule
from pagefleet_api.schema import Model, rules, text_rule

_URI = (
    "give a folder as Hugging Face lays it out by hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
    "az://CONTAINER/PREFIX, http(s)://HOST/PATH, pvc://CLAIM/PATH or file:///PATH in the engine's image, without .. or "
    'any of ,=" in the path'
)
_NO_DRAFT = f"is no draft's URI: {_URI}"
_FOLDER = model_uri.folder_match(',="')
_URI_RULE = text_rule(model_uri.cel_folder(_FOLDER), _URI, _NO_DRAFT)
_PLACE = "model.draft"


def _is_uri(text: str) -> str:
    if not model_uri.is_folder(text, _FOLDER):
        raise ValueError(f"{text!r} {_NO_DRAFT}")
    return text


class Draft(Model):
    """A smaller model with the model's own tokens."""

    model_config = ConfigDict(json_schema_extra=rules(revision_rule(_PLACE)))
    uri: Annotated[str, AfterValidator(_is_uri)] = Field(
        min_length=1,
        max_length=2048,
        description="A folder as Hugging Face lays it out: hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
        "az://CONTAINER/PREFIX, http(s)://HOST/PATH, pvc://CLAIM/PATH, file:///PATH in the engine's image. It is "
        "downloaded as the model is: with model.secretRef, into model.cache.",
        json_schema_extra=rules(_URI_RULE),
    )
    revision: Revision | None = revision_of("guesses")

    @property
    def downloaded(self) -> bool:
        """Its files come over the network before the engine starts."""
        return model_uri.parse(self.uri).scheme in model_uri.DOWNLOADED


def refusals(draft: Draft | None) -> Iterator[str]:
    """What is wrong with it."""
    if draft is not None:
        yield from revision_refusals(_PLACE, draft.uri, draft.revision)
