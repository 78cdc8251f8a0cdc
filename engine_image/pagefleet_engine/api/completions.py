"""`/v1/completions`: a request's prompts, and its answer whole or in chunks."""

from collections.abc import Sequence

import msgspec

from pagefleet_engine.api import echo, logprobs
from pagefleet_engine.api.answers import (
    Answer,
    CompletionChoice,
    CompletionLogprobs,
    TextEvents,
    Usage,
    to_event,
    to_json,
)
from pagefleet_engine.api.choice import Choice, Delta, Entry
from pagefleet_engine.api.dialect import Asked, Heading, Whole
from pagefleet_engine.api.echo import Echo
from pagefleet_engine.api.model import ServedModel, TokenIds
from pagefleet_engine.api.requests import CompletionRequest
from pagefleet_engine.scheduler.admission import Capacity

_OBJECT = "text_completion"
_DEFAULT_ANSWER_TOKENS = 16
_NO_ECHO = Echo("", ())


class CompletionDialect:
    """One completions request in the forms of its endpoint; choices are numbered prompt by prompt."""

    def __init__(self, request: CompletionRequest, heading: Heading) -> None:
        self.request = request
        self.asked = Asked(
            answer_tokens=request.max_tokens,
            answer_tokens_field="max_tokens",
            prompt_field="prompt",
            top_logprobs=request.logprobs,
            prompt_logprobs=request.logprobs if request.echo else None,
            prompts=len(request.prompts),
            default_answer_tokens=_DEFAULT_ANSWER_TOKENS,
        )
        self._heading = heading
        self._vocabulary = heading.model.tokenizer
        self._token_ids: tuple[TokenIds, ...] = ()
        self._echoes: list[Echo] = []
        self._scores: dict[int, CompletionLogprobs] = {}
        self._texts = TextEvents()

    @property
    def prompts_are_quick(self) -> bool:
        """Whether the prompts came as tokens; a change of threads would take longer than they do."""
        return not self.request.echo and not any(isinstance(prompt, str) for prompt in self.request.prompts)

    def prompts(self, model: ServedModel, capacity: Capacity) -> tuple[TokenIds, ...]:
        """The tokens of every prompt; slow, for a thread. Raises `InvalidRequest`, `ContextTooLong`."""
        given = self.request.prompts
        self._token_ids = tuple(model.prompt_tokens(prompt, capacity) for prompt in given)
        if self.request.echo:
            pairs = zip(given, self._token_ids, strict=True)
            self._echoes = [echo.echo(prompt, token_ids, model.tokenizer) for prompt, token_ids in pairs]
        return self._token_ids

    def opening(self, index: int, choice: Choice, usage: Usage | None) -> bytes | None:
        """The echoed prompt with its log-probabilities; slow with these, for a thread."""
        if not self.request.echo:
            return None
        scores = self._prompt_logprobs(index, choice)
        return self._event(CompletionChoice(index, self._echo(index).text, scores, None), usage)

    def chunk(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        """A chunk of text."""
        if not delta.entries and usage is None:
            return self._texts.event(index, delta.text, self._plain_event)
        found = self._answer_logprobs(index, delta.entries) if delta.entries else None
        return self._event(CompletionChoice(index, delta.text, found, None), usage)

    def closing(self, index: int, finish_reason: str, usage: Usage | None) -> bytes:
        """The one chunk of a choice with a finish reason."""
        return self._event(CompletionChoice(index, "", None, finish_reason), usage)

    def usage_event(self, usage: Usage) -> bytes:
        """The chunk after all choices."""
        return to_event(self._answer([], usage))

    def whole(self, choices: Sequence[Whole], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        return to_json(self._answer([self._choice(index, each) for index, each in enumerate(choices)], usage))

    def _choice(self, index: int, whole: Whole) -> CompletionChoice:
        text = self._echo(index).text + whole.text
        if self.asked.top_logprobs is None:
            return CompletionChoice(index, text, None, whole.finish_reason)
        found = self._answer_logprobs(index, whole.entries)
        before = self._prompt_logprobs(index, whole.choice)
        return CompletionChoice(index, text, _joined(before, found) if before else found, whole.finish_reason)

    def _echo(self, index: int) -> Echo:
        return self._echoes[index // self.request.choices] if self._echoes else _NO_ECHO

    def _prompt_logprobs(self, index: int, choice: Choice) -> CompletionLogprobs | None:
        """The scores of a choice's prompt: made once for all choices of it."""
        if self.asked.prompt_logprobs is None:
            return None
        prompt = index // self.request.choices
        if prompt not in self._scores:
            offsets = self._echoes[prompt].offsets
            self._scores[prompt] = logprobs.prompt(
                self._token_ids[prompt], choice.prompt_logprobs, offsets, self._vocabulary
            )
        return self._scores[prompt]

    def _answer_logprobs(self, index: int, entries: Sequence[Entry]) -> CompletionLogprobs:
        return logprobs.completion(entries, self._vocabulary, len(self._echo(index).text))

    def _plain_event(self, index: int, text: str) -> bytes:
        return self._event(CompletionChoice(index, text, None, None))

    def _event(self, choice: CompletionChoice, usage: Usage | None = None) -> bytes:
        untold = None if self.request.include_usage else msgspec.UNSET
        return to_event(self._answer([choice], untold if usage is None else usage))

    def _answer(
        self, choices: list[CompletionChoice], usage: Usage | msgspec.UnsetType | None
    ) -> Answer[CompletionChoice]:
        heading = self._heading
        return Answer(heading.answer_id, _OBJECT, heading.created_at_s, heading.model_name, choices, usage)


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )
