"""What became of a request to the API server: one type for each thing that a caller can do about it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_api.wording import without_middle

_NEEDS_A_PERSON = ("failed calling webhook", "failed to create typed patch object")
"""Internal errors (500) that somebody must act on: a webhook is away; a field has another type or name in an apply."""

_MOST_CHARACTERS = 4_000
"""Of the server's words, in which a value that a user gave may be as long as it was given."""


class ApiError(Exception):
    """A request that the API server did not carry out; the text is the server's."""


class NotFound(ApiError):
    """The object is gone: look again."""


class Outdated(ApiError):
    """Somebody else changed or replaced the object: look again."""


class Terminating(ApiError):
    """The namespace is on its way out: nothing can be created in it, ever again."""


class Refused(ApiError):
    """The server refuses the object: quota, admission, permissions; the user or an administrator must act."""


class Unavailable(ApiError):
    """The server did not answer, or asked for later: try again later."""


class NotLeading(ApiError):
    """This replica may not write now."""


def answer_error(status: int, text: bytes, request: str) -> ApiError:
    """What an answer of 300 and more means; the text is the server's, or names the request."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    said = answer.get("message") or f"{request}: HTTP {status}"
    message = without_middle(said, _MOST_CHARACTERS)
    if status == 404:
        return NotFound(message)
    if status == 409:
        return Outdated(message)
    if "NamespaceTerminating" in _causes(answer):
        return Terminating(message)
    if any(words in said for words in _NEEDS_A_PERSON):
        return Refused(message)
    if status == 429 or status >= 500 or status == 401:
        return Unavailable(message)
    return Refused(message)


def _causes(answer: Mapping[str, Any]) -> Iterator[str]:
    yield from (cause.get("reason", "") for cause in (answer.get("details") or {}).get("causes") or ())
