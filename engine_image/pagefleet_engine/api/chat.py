"""`/v1/chat/completions`: a request's prompt, and its answer whole or in chunks."""

from collections.abc import Sequence

import msgspec

from pagefleet_engine.api import logprobs
from pagefleet_engine.api.answers import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
    TextEvents,
    Usage,
    to_event,
    to_json,
)
from pagefleet_engine.api.choice import Choice, Delta
from pagefleet_engine.api.dialect import Asked, Heading, Whole
from pagefleet_engine.api.model import ServedModel, TokenIds
from pagefleet_engine.api.requests import ChatRequest
from pagefleet_engine.scheduler.admission import Capacity


class ChatDialect:
    """One chat request in the forms of its endpoint."""

    def __init__(self, request: ChatRequest, heading: Heading) -> None:
        self.request = request
        self.asked = Asked(
            answer_tokens=request.answer_tokens,
            answer_tokens_field=request.answer_tokens_field,
            prompt_field="messages",
            top_logprobs=request.alternatives,
            prompt_logprobs=None,
            prompts=1,
        )
        self._heading = heading
        self._vocabulary = heading.model.tokenizer
        self._texts = TextEvents()

    @property
    def prompts_are_quick(self) -> bool:
        """Never: a conversation goes through its template."""
        return False

    def prompts(self, model: ServedModel, capacity: Capacity) -> tuple[TokenIds, ...]:
        """The conversation's tokens; slow, for a thread."""
        return (model.chat_tokens(self.request.messages, capacity),)

    def opening(self, index: int, choice: Choice, usage: Usage | None) -> bytes | None:
        """The first chunk of a choice: who speaks."""
        return self._event(ChatChunkChoice(index, ChatDelta(role="assistant", content=""), None, None), usage)

    def chunk(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        """A chunk of text."""
        if not delta.entries and usage is None:
            return self._texts.event(index, delta.text, self._plain_event)
        found = logprobs.chat(delta.entries, self._vocabulary) if delta.entries else None
        return self._event(ChatChunkChoice(index, ChatDelta(content=delta.text), found, None), usage)

    def closing(self, index: int, finish_reason: str, usage: Usage | None) -> bytes:
        """The one chunk of a choice with a finish reason."""
        return self._event(ChatChunkChoice(index, ChatDelta(), None, finish_reason), usage)

    def usage_event(self, usage: Usage) -> bytes:
        """The chunk after all choices."""
        return to_event(self._chunk([], usage))

    def whole(self, choices: Sequence[Whole], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        heading = self._heading
        shown = [self._choice(index, each) for index, each in enumerate(choices)]
        return to_json(
            Answer(heading.answer_id, "chat.completion", heading.created_at_s, heading.model_name, shown, usage)
        )

    def _choice(self, index: int, whole: Whole) -> ChatChoice:
        found = None if self.asked.top_logprobs is None else logprobs.chat(whole.entries, self._vocabulary)
        return ChatChoice(index, ChatMessage(content=whole.text), found, whole.finish_reason)

    def _plain_event(self, index: int, text: str) -> bytes:
        return self._event(ChatChunkChoice(index, ChatDelta(content=text), None, None))

    def _event(self, choice: ChatChunkChoice, usage: Usage | None = None) -> bytes:
        untold = None if self.request.include_usage else msgspec.UNSET
        return to_event(self._chunk([choice], untold if usage is None else usage))

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | msgspec.UnsetType | None
    ) -> Answer[ChatChunkChoice]:
        heading = self._heading
        return Answer(
            heading.answer_id, "chat.completion.chunk", heading.created_at_s, heading.model_name, choices, usage
        )
