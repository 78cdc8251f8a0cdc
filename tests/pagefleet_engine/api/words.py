"""A vocabulary for tests: token ids are indices into a list of byte strings."""

from collections.abc import Iterable

from pagefleet_engine.steps import TokenLogprobs
from pagefleet_engine.wire import TokenEvent


class Words:
    """Tokens in order of their first appearance; `special` ones are markup."""

    def __init__(self, tokens: Iterable[bytes], special: Iterable[int] = ()) -> None:
        self.tokens = list(tokens)
        self.special = set(special)

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def events(
    token_ids: list[int], finish: str = "length", *, top: int | None = None, request_id: int = 1
) -> list[TokenEvent]:
    """One event for each token; the last carries the end."""
    return [
        TokenEvent(
            request_id=request_id,
            token_id=token_id,
            logprobs=None if top is None else TokenLogprobs(token_id, -1.0, ((token_id, -1.0),) * top),
            finish_reason=finish if place == len(token_ids) - 1 else None,
            cached_prompt_tokens=3 if place == 0 else None,
        )
        for place, token_id in enumerate(token_ids)
    ]
