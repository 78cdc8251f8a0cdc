"""`spec.engine.speculative`: tokens that are guessed ahead and checked together, several for one step's reading of the
weights. A guess that was wrong costs its part of the step.

Names and limits as each engine has them: vllm/config/speculative.py (0.18 to 0.32), sglang/srt/server_args.py (0.5.11
to 0.5.23), `NGramDecodingConfig` in tensorrt_llm/llmapi/llm_args.py (1.2, 1.3), TGI's launcher (3.3).
"""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from pagefleet_api.runtimes import Runtime
from pagefleet_api.schema import Model, Rule, rules

DEFAULT_TOKENS = 4
"""For engines that must be told a number."""
_MOST = 64

_LONGEST_FIRST = "engine.speculative.lookupMin must not be above lookupMax; lower lookupMin or raise lookupMax"
_WITHOUT_METHOD = (
    "engine.speculative.tokens, lookupMax and lookupMin say how to guess, and engine.speculative.method is none; set "
    "method: ngram, or leave them out"
)


class Speculative(Model):
    """Guesses ahead of the model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!has(self.lookupMin) || !has(self.lookupMax) || self.lookupMin <= self.lookupMax", _LONGEST_FIRST),
            (
                "(has(self.method) && self.method != 'none') "
                "|| !(has(self.tokens) || has(self.lookupMax) || has(self.lookupMin))",
                _WITHOUT_METHOD,
            ),
        )
    )
    method: Literal["none", "ngram"] = Field(
        "none",
        description="Where guesses come from. ngram: what followed the same tokens before, in the prompt and in the "
        "answer so far; good where answers repeat their prompts, as in editing or extraction. Default: none.",
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

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for refusal in self._refusals():
            raise ValueError(refusal)
        return self

    def _refusals(self) -> Iterator[str]:
        if self.lookup_min is not None and self.lookup_max is not None and self.lookup_min > self.lookup_max:
            yield _LONGEST_FIRST
        if not self.guesses and (self.tokens, self.lookup_max, self.lookup_min) != (None, None, None):
            yield _WITHOUT_METHOD


_ON = "engine.speculative.method ngram is not available with engine.runtime sglang and "
_STAGES = _ON + "engine.parallelism.pipeline above 1, which it refuses; leave one of them out"
_PAGES = _ON + (
    "engine.kvCache.blockSize above 1, as it checks several guesses for the same place at once; leave blockSize out"
)
_SGLANG_GUESSES = (
    "!has(self.runtime) || self.runtime != 'sglang' || !has(self.speculative) || !has(self.speculative.method) "
    "|| self.speculative.method == 'none' "
)
RULES = (
    Rule(
        _SGLANG_GUESSES + "|| !has(self.parallelism) || !has(self.parallelism.pipeline) "
        "|| self.parallelism.pipeline == 1",
        _STAGES,
    ),
    Rule(
        _SGLANG_GUESSES + "|| !has(self.kvCache) || !has(self.kvCache.blockSize) || self.kvCache.blockSize == 1", _PAGES
    ),
)
"""For the API server, on the engine.

Source: `_handle_speculative_decoding` and `check_server_args` in sglang/srt/server_args.py (0.5.11)."""


def refusals(speculative: Speculative, runtime: Runtime, *, pipeline: int, block_size: int | None) -> Iterator[str]:
    """What this engine does not do beside guessing."""
    if runtime is Runtime.SGLANG and speculative.guesses:
        if pipeline > 1:
            yield _STAGES
        if (block_size or 1) > 1:
            yield _PAGES
