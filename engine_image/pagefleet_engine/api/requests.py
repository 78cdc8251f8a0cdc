"""Bodies of `/v1/chat/completions` and `/v1/completions`, parsed once at the door.

Strict types; every field out of range is named with its value and what is allowed. Documented choices:
unknown fields are ignored, known but unsupported ones refused (`fields`); `temperature` is 1.0 where absent;
up to 20 alternatives for log-probabilities in both; a list of prompts gives `n` choices for each, in the order
of the prompts.

A body costs in proportion to its size, whatever is in it: what is wrong is told once, not for each item, and what is
too much is counted before it is looked at. pydantic notes every fault of a list, and a note has hundreds of bytes.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationInfo

from pagefleet_engine.api import body_values, fields
from pagefleet_engine.api.errors import ContextTooLong, InvalidRequest
from pagefleet_engine.scheduler import admission
from pagefleet_engine.scheduler.admission import Capacity

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_CACHE_SALT_CHARS = 256
MAX_USER_CHARS = 1024

LEAST_REPETITION_PENALTY = 0.01
"""A logit divided by much less is no finite number any more."""
MOST_REPETITION_PENALTY = 100

TokenCount = Annotated[int, Field(ge=1, lt=2**31)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
RepetitionPenalty = Annotated[
    float, Field(ge=LEAST_REPETITION_PENALTY, le=MOST_REPETITION_PENALTY, allow_inf_nan=False)
]


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)]


def _few_biases(given: Any) -> Any:
    """Raises `InvalidRequest` before each of too many entries is looked at."""
    if given is not None and not isinstance(given, dict):
        raise InvalidRequest(
            f"logit_bias must be an object of token ids and numbers, but it is {fields.shown(given)}",
            param="logit_bias",
        )
    if given is not None and len(given) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias has {len(given)} entries; at most {MAX_LOGIT_BIAS}", param="logit_bias")
    return given


Biases = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None, BeforeValidator(_few_biases)
]


class StreamOptions(BaseModel):
    """What a stream carries beside the text."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(BaseModel):
    """Fields that both endpoints have."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", protected_namespaces=())

    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]]

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: int | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Any = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None = None
    logit_bias: Biases = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    user: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; checked by `parse`."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk of a stream tells the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def check(self) -> None:
        """What types cannot say; raises `InvalidRequest`."""
        fields.refuse_unsupported(self.model_extra or {}, self.refused_fields)
        _check_stop(self.stop)
        if self.best_of is not None and self.best_of != self.choices:
            raise InvalidRequest(
                f"best_of is {fields.shown(self.best_of)}; it is only supported equal to n, which is {self.choices}",
                param="best_of",
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed with stream: true", param="stream_options")
        if self.usage_in_chunks and not self.include_usage:
            raise InvalidRequest(
                "stream_options.continuous_usage_stats is only allowed with stream_options.include_usage: true",
                param="stream_options.continuous_usage_stats",
            )


class ChatRequest(GenerationRequest):
    """The body of `/v1/chat/completions`."""

    refused_fields = fields.CHAT

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def answer_tokens(self) -> int | None:
        """Most tokens to generate; None is the rest of the window. The newer field wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def answer_tokens_field(self) -> str:
        """The field that `answer_tokens` came from."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def alternatives(self) -> int | None:
        """Alternatives for each token, 0 for the chosen one's log-probability alone, None for none."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs is only allowed with logprobs: true", param="top_logprobs")


Prompt = str | tuple[int, ...]


def _prompts(prompt: Any, info: ValidationInfo) -> tuple[Prompt, ...]:
    """Every prompt, text or token ids; `info.context` is a `Capacity`, or None for no bound.

    Raises `InvalidRequest`, and `ContextTooLong` before it looks at each of too many token ids.
    """
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if _is_token_ids(prompt, info.context):
            return (tuple(prompt),)
        if all(isinstance(each, str) for each in prompt):
            return tuple(prompt)
        if all(isinstance(each, list) and each and _is_token_ids(each, info.context) for each in prompt):
            return tuple(tuple(each) for each in prompt)
    raise InvalidRequest(
        "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids, and "
        f"none of them empty, but it is {fields.shown(prompt)}",
        param="prompt",
    )


def _is_token_ids(value: list[Any], capacity: Capacity | None) -> bool:
    if type(value[0]) is not int:
        return False
    if capacity is not None and len(value) > capacity.window_tokens:
        found = admission.refusal(len(value), 0, capacity.max_model_len, capacity.num_blocks)
        if found is not None:
            raise ContextTooLong(found.message, param="prompt")
    return set(map(type, value)) == {int} and min(value) >= 0


class CompletionRequest(GenerationRequest):
    """The body of `/v1/completions`."""

    refused_fields = fields.COMPLETIONS

    prompts: Annotated[tuple[Prompt, ...], PlainValidator(_prompts)] = Field(alias="prompt")
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None


_RequestT = TypeVar("_RequestT", bound=GenerationRequest)

BODY_LIMIT_BYTES = 32 << 20
_LEAST_BODY_LIMIT_BYTES = 4 << 20
_JSON_GROWTH = 6
"""JSON may write a byte as `\\u0061`."""


def body_limit_bytes(most_text_bytes: int) -> int:
    """The largest body that is read, of a request whose prompts can have `most_text_bytes` at most."""
    return min(max(most_text_bytes * _JSON_GROWTH, _LEAST_BODY_LIMIT_BYTES), BODY_LIMIT_BYTES)


def parse(kind: type[_RequestT], body: bytes, capacity: Capacity | None = None) -> _RequestT:
    """Read a JSON body; raises `InvalidRequest` with the first field at fault.

    With `capacity`, a list of more token ids than can ever run is refused before it is read.
    """
    body_values.check(body, 0 if capacity is None else capacity.window_tokens)
    try:
        request = kind.model_validate_json(body, context=capacity)
    except pydantic.ValidationError as error:
        raise _refusal(error) from None
    request.check()
    return request


def _refusal(error: pydantic.ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    where = _path(first["loc"])
    if not where:
        return InvalidRequest(f"the body must be a JSON object, not {fields.shown(first['input'])}")
    if first["type"] == "missing":
        return InvalidRequest(f"{where} is missing", param=where)
    message = first["msg"][:1].lower() + first["msg"][1:]
    return InvalidRequest(f"{where}: {message}, but it is {fields.shown(first['input'])}", param=where)


def _path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{fields.cut(part)}" for part in location]
    return "".join(parts).removeprefix(".")


def _check_stop(stop: Any) -> None:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise InvalidRequest(f"stop must be a string or a list of strings, not {fields.shown(stop)}", param="stop")
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop has {len(stops)} strings; at most {MAX_STOPS}", param="stop")
    if not all(stops):
        raise InvalidRequest("stop must not hold an empty string", param="stop")
    longest = max(stops, key=len, default="")
    if len(longest) > MAX_STOP_CHARS:
        raise InvalidRequest(
            f"stop holds a string of {len(longest)} characters, {fields.shown(longest)}; at most {MAX_STOP_CHARS}",
            param="stop",
        )
