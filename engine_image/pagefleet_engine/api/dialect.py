"""What the two endpoints share: a request as the engine sees it, an answer before it takes a form."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagefleet_engine.api.answers import Usage
from pagefleet_engine.api.choice import Choice, Delta, Entry
from pagefleet_engine.api.model import ServedModel, TokenIds
from pagefleet_engine.api.requests import GenerationRequest
from pagefleet_engine.scheduler.admission import Capacity


class Heading(NamedTuple):
    """What every chunk of an answer repeats."""

    answer_id: str
    created_at_s: int
    model_name: str
    model: ServedModel


class Asked(NamedTuple):
    """What is asked of the engine beyond sampling; the field names are for error messages.

    Without `answer_tokens` an answer has as many as fit, and at most `default_answer_tokens`.
    """

    answer_tokens: int | None
    answer_tokens_field: str
    prompt_field: str
    top_logprobs: int | None
    prompt_logprobs: int | None
    prompts: int
    default_answer_tokens: int | None = None


class Whole(NamedTuple):
    """One finished choice."""

    choice: Choice
    text: str
    entries: tuple[Entry, ...]

    @property
    def finish_reason(self) -> str:
        """Why it ended: stop or length."""
        return self.choice.finish_reason or "length"


class Dialect(Protocol):
    """One request in the forms of its endpoint; every method gives bytes that are ready to send."""

    asked: Asked

    @property
    def request(self) -> GenerationRequest:
        """The parsed body."""
        ...

    @property
    def prompts_are_quick(self) -> bool:
        """Whether `prompts` has next to nothing to do."""
        ...

    def prompts(self, model: ServedModel, capacity: Capacity) -> tuple[TokenIds, ...]:
        """The tokens of every prompt; slow, for a thread, unless `prompts_are_quick`.

        Raises `InvalidRequest`, `ContextTooLong`.
        """
        ...

    def opening(self, index: int, choice: Choice, usage: Usage | None) -> bytes | None:
        """The first chunk of a choice, once something of it is known; None where there is none.

        `usage`, here and in the other chunks, is what was used so far, where every chunk tells it.
        """
        ...

    def chunk(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        """A chunk of text."""
        ...

    def closing(self, index: int, finish_reason: str, usage: Usage | None) -> bytes:
        """The one chunk of a choice with a finish reason."""
        ...

    def usage_event(self, usage: Usage) -> bytes:
        """The chunk after all choices."""
        ...

    def whole(self, choices: Sequence[Whole], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        ...
