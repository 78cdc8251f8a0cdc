"""From the exact bytes of tokens to text, without ever taking a character back."""

import codecs


class Detokenizer:
    """Incremental UTF-8: bytes of an unfinished character are held until the rest of it comes.

    The texts that `push` and `finish` return, joined, equal `all_bytes.decode("utf-8", "replace")` for
    every way of splitting the bytes: invalid bytes become U+FFFD as soon as they are known to be invalid,
    an unfinished character at the end becomes one U+FFFD in `finish`.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: bytes) -> str:
        """The characters that are complete now; may be empty."""
        return self._decoder.decode(token)

    def finish(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)
