"""`spec.model.adapters`: LoRA adapters that are served beside their model, each by a name of its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from pagefleet_api import model_uri, wording
from pagefleet_api.hub import Revision, revision_of, revision_refusals, revision_rule
from pagefleet_api.runtimes import Runtime
from pagefleet_api.schema import Model, Shaped, joint, rules, text_rule

MOST = 32
"""Adapters of one service: each takes memory of every pod, and engines keep all of them beside the model."""
MOST_RANK = 512
"""The largest that some engine takes."""

_URI = (
    "give a folder as PEFT writes it by hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, "
    "http(s)://HOST/PATH, pvc://CLAIM/PATH or file:///PATH in the engine's image, without .. or any of ,=@ in the path"
)
_NO_ADAPTER = f"is no adapter's URI: {_URI}"
_FOLDER = model_uri.folder_match(",=@")
"""These characters mean something in the lists that engines are told.

Source: `parse_lora_adapters` in text_generation_server/utils/adapter.py (3.3), where a revision begins with @."""
_URI_RULE = text_rule(model_uri.cel_folder(_FOLDER), _URI, _NO_ADAPTER)
_PLACE = "model.adapters[{}]"
_TWICE = "model.adapters has two of the name {}; give each adapter a name of its own"
_SERVED = "model.adapters: {} is the model's own name for clients (model.servedName); give the adapter another one"
_NOT_SERVED = "model.adapters is not available with engine.runtime {}: {}"

NOT_WITH: Mapping[Runtime, str] = {
    Runtime.TENSORRT_LLM: "its server takes an adapter by the path that a request gives (lora_request), not by a name; "
    "use engine.runtime pagefleet, vllm, sglang or tgi",
}
"""Engines that serve no adapter by a name: why, and the way out."""
RUNTIME_RULES = tuple(
    joint(
        "!has(self.model.adapters) || size(self.model.adapters) == 0 || (has(self.engine) && has(self.engine.runtime) "
        f"? self.engine.runtime : 'pagefleet') != '{runtime}'",
        _NOT_SERVED.format(runtime, why),
        field="model.adapters",
    )
    for runtime, why in NOT_WITH.items()
)
"""On the whole spec."""

_SERVED_NAME = "(has(self.spec.model.servedName) ? self.spec.model.servedName : self.metadata.name)"
SERVED_RULE = joint(
    f"!has(self.spec.model.adapters) || !self.spec.model.adapters.exists(each, each.name == {_SERVED_NAME})",
    _SERVED,
    _SERVED_NAME,
    field="spec.model.adapters",
    plain=_SERVED.format("the name of one"),
)
"""On the whole object: the name that is served by default is the object's."""


def _is_uri(text: str) -> str:
    if not model_uri.is_folder(text, _FOLDER):
        raise ValueError(f"{text!r} {_NO_ADAPTER}")
    return text


AdapterName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    Shaped(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "letters, digits, ., _ and -, with a letter or digit first, for example sql-v2"
    ),
]


class Adapter(Model):
    """A LoRA adapter of the model."""

    model_config = ConfigDict(json_schema_extra=rules(revision_rule(_PLACE)))
    name: AdapterName = Field(
        description="What clients give as the model's name to have it; another one than model.servedName.",
    )
    uri: Annotated[str, AfterValidator(_is_uri)] = Field(
        min_length=1,
        max_length=2048,
        description="A folder as PEFT writes it: hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
        "az://CONTAINER/PREFIX, http(s)://HOST/PATH, pvc://CLAIM/PATH, file:///PATH in the engine's image. It is "
        "downloaded as the model is: with model.secretRef, into model.cache.",
        json_schema_extra=rules(_URI_RULE),
    )
    revision: Revision | None = revision_of("adapter")
    rank: int | None = Field(
        None,
        ge=1,
        le=MOST_RANK,
        description="r of its adapter_config.json, which the fit check counts and vLLM sets memory aside for; where it "
        "is absent vLLM does for 16.",
    )

    @property
    def downloaded(self) -> bool:
        """Its files come over the network before the engine starts."""
        return model_uri.parse(self.uri).scheme in model_uri.DOWNLOADED


def refusals(adapters: Sequence[Adapter]) -> Iterator[str]:
    """What is wrong with these together."""
    for adapter in adapters:
        yield from revision_refusals(_PLACE.format(adapter.name), adapter.uri, adapter.revision)
    name = wording.twice([adapter.name for adapter in adapters])
    if name is not None:
        yield _TWICE.format(name)


def runtime_refusals(adapters: Sequence[Adapter], runtime: Runtime) -> Iterator[str]:
    """Why that engine cannot serve them."""
    if adapters and runtime in NOT_WITH:
        yield _NOT_SERVED.format(runtime, NOT_WITH[runtime])


def served_refusals(adapters: Sequence[Adapter], served_name: str) -> Iterator[str]:
    """Whether one of them has the model's own name, in words."""
    if any(adapter.name == served_name for adapter in adapters):
        yield f"spec.{_SERVED.format(served_name)}"
