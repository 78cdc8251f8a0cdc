"""How many values a JSON body has, counted before it is parsed: each takes many times its bytes in the body."""

import re

from pagefleet_engine.api.errors import InvalidRequest

MAX_CONTAINERS = 100_000
"""Objects and lists, of which messages and prompts need far fewer."""
MAX_VALUES = 1_000_000
"""Values, token ids among them, where the window does not ask for more; one takes some 40 bytes, so 32 MiB of numbers
without a bound 700 MB."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""One that never ends matches too: else each quote in it would be tried, to the end of the body."""


def check(body: bytes, window_tokens: int = 0) -> None:
    """Raises `InvalidRequest` where there are more than a request can need, by brackets and commas outside of texts.

    A prompt may fill a window of `window_tokens`.
    """
    most_values = max(MAX_VALUES, 2 * window_tokens)
    containers, values = body.count(b"{") + body.count(b"["), body.count(b",")
    for texts, match in enumerate(_TEXT.finditer(body)):
        if (containers <= MAX_CONTAINERS and values <= most_values) or texts > 2 * most_values:
            break  # a text is a value or the name of one
        text = match[0]
        containers -= text.count(b"{") + text.count(b"[")
        values -= text.count(b",")
    if containers > MAX_CONTAINERS or values > most_values:
        raise InvalidRequest(
            f"the body has more than {MAX_CONTAINERS} objects and lists, or more than {most_values} values; send less "
            "at once, or text in the place of token ids"
        )
