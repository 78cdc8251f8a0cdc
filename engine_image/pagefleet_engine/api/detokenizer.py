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
        self._holds = False

    def push(self, token: bytes) -> str:
        """The characters that are complete now; may be empty."""
        if not self._holds:
            try:
                return token.decode()
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(token)
        self._holds = self._decoder.getstate()[0] != b""
        return text

    def finish(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)
