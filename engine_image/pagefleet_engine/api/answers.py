"""What the OpenAI endpoints send, as types; encoded to JSON by msgspec."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from pagefleet_engine.api.errors import ErrorBody

ChoiceT = TypeVar("ChoiceT")


class CachedTokens(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed again."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request: each prompt once, all choices summed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TokenAlternative(msgspec.Struct, frozen=True):
    """A token that the model might have chosen; `bytes` are its own, not those of a text."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """One generated token; `bytes` joined over an answer are its content, so markup has none."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenAlternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a chat choice or chunk."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """The answer of one choice."""

    content: str
    role: str = "assistant"


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a whole chat answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to one choice."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice in a chunk of a chat stream."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities in the form of the completions endpoint: four lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice of a completion, whole or in a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Answer(msgspec.Struct, Generic[ChoiceT], frozen=True):
    """A whole answer, or one chunk of a stream; `usage` null or absent as the client asked."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChoiceT]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`; `device` and `weights` say plainly where answers mean nothing.

    `root` is what vLLM's benchmark client asks for beside the id. `parent` is the model that an adapter adapts.
    """

    id: str
    root: str
    created: int
    max_model_len: int
    device: str
    weights: str
    parent: str | None
    object: str = "model"
    owned_by: str = "pagefleet"


class ModelList(msgspec.Struct, frozen=True):
    """`/v1/models`."""

    data: list[Model]
    object: str = "list"


DONE = b"data: [DONE]\n\n"
"""The end of a stream that told everything."""

_ENCODER = msgspec.json.Encoder()


def to_json(value: msgspec.Struct) -> bytes:
    """The body of an answer."""
    return _ENCODER.encode(value)


_MARK = "\0"
_ENCODED_MARK = _ENCODER.encode(_MARK)


class TextEvents:
    """Events that differ in one text alone, each put together from the encoded parts around it."""

    def __init__(self) -> None:
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def event(self, index: int, text: str, make: Callable[[int, str], bytes]) -> bytes:
        """The event of the choice `index` with `text`, as `make` makes it; nothing else in it may hold a NUL."""
        around = self._around.get(index)
        if around is None:
            before, _, after = make(index, _MARK).partition(_ENCODED_MARK)
            around = self._around[index] = (before, after)
        return around[0] + _ENCODER.encode(text) + around[1]


def to_event(value: "Answer[ChatChunkChoice] | Answer[CompletionChoice] | ErrorBody") -> bytes:
    """One server-sent event."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"
