"""`spec.engine.speculative`: tokens that are guessed ahead and checked together, several for one step's reading of the
weights. A guess that was wrong costs its part of the step.

Names and limits as each engine has them: vllm/config/speculative.py (0.18 to 0.32), sglang/srt/server_args.py (0.5.11
to 0.5.23), `NGramDecodingConfig` in tensorrt_llm/llmapi/llm_args.py (1.2, 1.3), TGI's launcher (3.3).
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import ConfigDict, Field

from pagefleet_api.agreement import Agreeing, Ordered
from pagefleet_api.model_source import ModelSource
from pagefleet_api.runtimes import Runtime
from pagefleet_api.schema import joint, rules

DEFAULT_TOKENS = 4
"""For engines that must be told a number."""
_MOST = 64

_LOOKUPS = Ordered("lookupMin", "lookupMax")
_LOOKED_UP = (
    "engine.speculative.lookupMax and lookupMin say what is looked up, and engine.speculative.method is draft; leave "
    "them out, or set method: ngram"
)
_WITHOUT_METHOD = (
    "engine.speculative.tokens, lookupMax and lookupMin say how to guess, and engine.speculative.method is none; set "
    "method, or leave them out"
)


class Speculative(Agreeing):
    """Guesses ahead of the model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            _LOOKUPS.rule,
            joint(
                "(has(self.method) && self.method != 'none') "
                "|| !(has(self.tokens) || has(self.lookupMax) || has(self.lookupMin))",
                _WITHOUT_METHOD,
                field="method",
            ),
            joint(
                "!has(self.method) || self.method != 'draft' || !(has(self.lookupMax) || has(self.lookupMin))",
                _LOOKED_UP,
                field="method",
            ),
        )
    )
    method: Literal["none", "ngram", "draft"] = Field(
        "none",
        description="Where guesses come from. ngram: what followed the same tokens before, in the prompt and in the "
        "answer so far; good where answers repeat their prompts, as in editing or extraction. draft: a smaller model, "
        "which is model.draft. Default: none.",
        json_schema_extra={"maxLength": 16},
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=_MOST,
        description=f"Tokens that are guessed at a time. Default: {DEFAULT_TOKENS}, or the engine's where it has one.",
    )
    lookup_max: int | None = Field(
        None,
        ge=1,
        le=_MOST,
        description="Most of the latest tokens to look for in what came before. Default: the engine's.",
    )
    lookup_min: int | None = Field(
        None,
        ge=1,
        le=_MOST,
        description="Fewest of the latest tokens that a guess may follow. Default: lookupMax, or the engine's.",
    )

    @property
    def guesses(self) -> bool:
        """Whether anything is guessed."""
        return self.method != "none"

    def _refusals(self) -> Iterator[str]:
        yield from _LOOKUPS.refusals(self.lookup_min, self.lookup_max)
        if not self.guesses and (self.tokens, self.lookup_max, self.lookup_min) != (None, None, None):
            yield _WITHOUT_METHOD
        if self.method == "draft" and (self.lookup_max, self.lookup_min) != (None, None):
            yield _LOOKED_UP


_UNABLE = (Runtime.TGI, Runtime.TENSORRT_LLM)
"""TGI knows heads of the model alone (Medusa); TensorRT-LLM names the draft in its file of options, by other names from
version to version (`speculative_model_dir`, `speculative_model`), and refuses what it does not know."""
_NO_DRAFT = (
    "engine.speculative.method draft is not available with engine.runtime {}; use method ngram, or engine.runtime vllm "
    "or sglang"
)
_STAGES = (
    "engine.speculative.method {} is not available with engine.parallelism.pipeline {}: no engine guesses for a model "
    "that is spread over pods; leave one of them out"
)
_PAGES = (
    "engine.speculative.method ngram is not available with engine.runtime sglang and engine.kvCache.blockSize {}, as "
    "it checks several guesses for one place at once; leave blockSize out"
)
_GUESSES = "has(self.speculative) && has(self.speculative.method) && self.speculative.method"
_ON_SGLANG = "has(self.runtime) && self.runtime == 'sglang'"
_FIELD = "speculative.method"
RULES = (
    joint(
        f"!({_GUESSES} == 'draft' && has(self.runtime) && self.runtime in ['tgi', 'tensorrt-llm'])",
        _NO_DRAFT,
        "self.runtime",
        field=_FIELD,
        plain=_NO_DRAFT.format("tgi or tensorrt-llm"),
    ),
    joint(
        f"!({_GUESSES} != 'none' && has(self.parallelism) && has(self.parallelism.pipeline) "
        "&& self.parallelism.pipeline > 1)",
        _STAGES,
        *("self.speculative.method", "self.parallelism.pipeline"),
        field=_FIELD,
        plain=_STAGES.format("ngram or draft", "above 1"),
    ),
    joint(
        f"!({_GUESSES} == 'ngram' && {_ON_SGLANG} && has(self.kvCache) && has(self.kvCache.blockSize) "
        "&& self.kvCache.blockSize > 1)",
        _PAGES,
        "self.kvCache.blockSize",
        field=_FIELD,
        plain=_PAGES.format("above 1"),
    ),
)
"""For the API server, on the engine.

Source: `_handle_speculative_decoding` and `check_server_args` in sglang/srt/server_args.py (0.5.11). Of stages,
"Known Feature Incompatibility" in vLLM's docs/features/speculative_decoding (0.18); with n-grams on the GPU its workers
end or hang (vllm-project/vllm#57817)."""


def refusals(speculative: Speculative, runtime: Runtime, *, pipeline: int, block_size: int | None) -> Iterator[str]:
    """What this engine does not do beside guessing."""
    if speculative.method == "draft" and runtime in _UNABLE:
        yield _NO_DRAFT.format(runtime)
    if speculative.guesses and pipeline > 1:
        yield _STAGES.format(speculative.method, pipeline)
    if runtime is Runtime.SGLANG and speculative.method == "ngram" and (block_size or 1) > 1:
        yield _PAGES.format(block_size)


_DRAFT_MISSING = (
    "engine.speculative.method draft needs model.draft: a smaller model with the same tokens, for example "
    "{uri: hf://ORG/SMALL}"
)
_DRAFT_UNUSED = (
    "model.draft {} is for engine.speculative.method draft, not for method {}; set method: draft, or leave model.draft "
    "out"
)
_ADAPTED = (
    "engine.speculative.method draft is not available with engine.runtime sglang and model.adapters, which no draft "
    "knows; use method ngram, or leave model.adapters out"
)
_METHOD = (
    "(has(self.engine) && has(self.engine.speculative) && has(self.engine.speculative.method) "
    "? self.engine.speculative.method : 'none')"
)
_IS_DRAFT = f"({_METHOD} == 'draft')"
DRAFT_RULES = (
    joint(f"!{_IS_DRAFT} || has(self.model.draft)", _DRAFT_MISSING, field="model.draft"),
    joint(
        f"{_IS_DRAFT} || !has(self.model.draft)",
        _DRAFT_UNUSED,
        *("self.model.draft.uri", _METHOD),
        field="model.draft",
        plain=_DRAFT_UNUSED.format("URI", "ngram or none"),
    ),
    joint(
        f"!{_IS_DRAFT} || !has(self.engine.runtime) || self.engine.runtime != 'sglang' || !has(self.model.adapters) "
        "|| size(self.model.adapters) == 0",
        _ADAPTED,
        field="engine.speculative.method",
    ),
)
"""For the API server, on the whole spec. Source: `check_lora_server_args` in sglang/srt/server_args.py (0.5.11)."""


def draft_refusals(speculative: Speculative, runtime: Runtime, model: ModelSource) -> Iterator[str]:
    """What of the model does not go together with how is guessed."""
    drafts = speculative.method == "draft"
    if drafts and model.draft is None:
        yield _DRAFT_MISSING
    if not drafts and model.draft is not None:
        yield _DRAFT_UNUSED.format(model.draft.uri, speculative.method)
    if drafts and runtime is Runtime.SGLANG and model.adapters:
        yield _ADAPTED
