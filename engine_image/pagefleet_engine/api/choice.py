"""One choice of an answer: from the core's token events to text, log-probabilities and an end."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagefleet_engine.api.detokenizer import Detokenizer
from pagefleet_engine.api.stop import Pattern, StopMatcher
from pagefleet_engine.steps import TokenLogprobs
from pagefleet_engine.wire import TokenEvent


class Vocabulary(Protocol):
    """What a choice needs of the tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """The token's exact bytes."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the token is markup, which the text leaves out."""
        ...


class Entry(NamedTuple):
    """Log-probabilities of one generated token, and the characters of the answer before it."""

    logprobs: TokenLogprobs
    offset_chars: int
    hidden: bool
    """The token has no text in the answer: markup, or the stop token."""


class Delta(NamedTuple):
    """What one event adds; `finish_reason` is set once, with the last."""

    text: str
    entries: tuple[Entry, ...]
    finish_reason: str | None


class Choice:
    """Text so far of one sequence. The joined deltas are the same however events are batched.

    The text leaves out special tokens, the stop token and the stop string. Every generated token has one
    `Entry` when log-probabilities were asked for, except those that lie wholly in a stop string. The text of
    the first `min_tokens` tokens has no part in a stop string.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[Pattern] = (), min_tokens: int = 0) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer()
        self._matcher = StopMatcher(stops) if stops else None
        self._min_tokens = min_tokens
        self._held: deque[Entry] = deque()
        self._decoded_chars = 0
        self._shown_chars = 0
        self.completion_tokens = 0
        self.cached_prompt_tokens: int | None = None
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None

    def push(self, event: TokenEvent) -> Delta:
        """Take one event of an unfinished choice; its `finish_reason` must not be "abort" or "error"."""
        if self.cached_prompt_tokens is None:
            self.cached_prompt_tokens = event.cached_prompt_tokens
        if event.prompt_logprobs:
            self.prompt_logprobs += event.prompt_logprobs
        text, stopped = "", False
        if event.token_id is not None:
            self.completion_tokens += 1
            text, stopped = self._add_token(event.token_id, event)
        if stopped:
            self.finish_reason = "stop"
        elif event.finish_reason is not None:
            text, self.finish_reason = self._add_tail(text, event.finish_reason)
        self._shown_chars += len(text)
        return Delta(text, self._release() if self._held else (), self.finish_reason)

    def _add_token(self, token_id: int, event: TokenEvent) -> tuple[str, bool]:
        hidden = event.finish_reason == "stop" or self._vocabulary.is_special(token_id)
        if event.logprobs is not None:
            self._held.append(Entry(event.logprobs, self._decoded_chars, hidden))
        if hidden:
            return "", False
        decoded = self._detokenizer.push(self._vocabulary.token_bytes(token_id))
        self._decoded_chars += len(decoded)
        if self._matcher is None or self.completion_tokens <= self._min_tokens:
            return decoded, False
        return self._matcher.push(decoded)

    def _add_tail(self, text: str, finish_reason: str) -> tuple[str, str]:
        if self._matcher is None or self.completion_tokens <= self._min_tokens:
            return text + self._detokenizer.finish(), finish_reason
        matched = self._matcher.push(self._detokenizer.finish())
        if matched.stopped:
            return text + matched.text, "stop"
        return text + matched.text + self._matcher.finish(), finish_reason

    def _release(self) -> tuple[Entry, ...]:
        """Entries whose text is shown; at a natural end all, at a stop string none that begin in it."""
        ended = self.finish_reason is not None
        released: list[Entry] = []
        while self._held and (self._held[0].offset_chars < self._shown_chars or self._ends_hidden(ended)):
            released.append(self._held.popleft())
        return tuple(released)

    def _ends_hidden(self, ended: bool) -> bool:
        return ended and self._held[0].offset_chars == self._shown_chars == self._decoded_chars
