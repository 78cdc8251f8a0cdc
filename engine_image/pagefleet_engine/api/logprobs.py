"""Log-probabilities as each endpoint shows them; pure."""

from collections.abc import Iterable, Sequence

from pagefleet_engine.api.answers import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TokenAlternative
from pagefleet_engine.api.choice import Entry, Vocabulary
from pagefleet_engine.steps import TokenLogprobs


def chat(entries: Iterable[Entry], vocabulary: Vocabulary) -> ChatLogprobs:
    """The chat form. Each token is decoded by itself: its neighbours have no part in its text."""
    return ChatLogprobs([_chat_token(entry, vocabulary) for entry in entries])


def _chat_token(entry: Entry, vocabulary: Vocabulary) -> ChatTokenLogprob:
    chosen = entry.logprobs
    raw = vocabulary.token_bytes(chosen.token_id)
    top = [_alternative(token_id, logprob, vocabulary) for token_id, logprob in chosen.top]
    return ChatTokenLogprob(
        token=_text(raw), logprob=chosen.logprob, bytes=[] if entry.hidden else list(raw), top_logprobs=top
    )


def _alternative(token_id: int, logprob: float, vocabulary: Vocabulary) -> TokenAlternative:
    raw = vocabulary.token_bytes(token_id)
    return TokenAlternative(token=_text(raw), logprob=logprob, bytes=list(raw))


def completion(entries: Iterable[Entry], vocabulary: Vocabulary, base_chars: int) -> CompletionLogprobs:
    """The completions form; `base_chars` characters of echoed prompt come before the answer."""
    result = CompletionLogprobs([], [], [], [])
    for entry in entries:
        _append(result, entry.logprobs, vocabulary, base_chars + entry.offset_chars)
    return result


def prompt(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], offsets: Sequence[int], vocabulary: Vocabulary
) -> CompletionLogprobs:
    """The echoed prompt's tokens at their `offsets`; the first has no log-probability, as nothing comes before it."""
    result = CompletionLogprobs([], [], [], [])
    _append_unknown(result, token_ids[0], vocabulary, offsets[0])
    for scored, offset in zip(logprobs, offsets[1:], strict=True):
        _append(result, scored, vocabulary, offset)
    return result


def _append_unknown(result: CompletionLogprobs, token_id: int, vocabulary: Vocabulary, offset: int) -> None:
    result.tokens.append(_key(vocabulary.token_bytes(token_id)))
    result.token_logprobs.append(None)
    result.top_logprobs.append(None)
    result.text_offset.append(offset)


def _append(result: CompletionLogprobs, logprobs: TokenLogprobs, vocabulary: Vocabulary, offset: int) -> None:
    chosen = _key(vocabulary.token_bytes(logprobs.token_id))
    top = {_key(vocabulary.token_bytes(token_id)): logprob for token_id, logprob in logprobs.top}
    result.tokens.append(chosen)
    result.token_logprobs.append(logprobs.logprob)
    result.top_logprobs.append(top | {chosen: logprobs.logprob})
    result.text_offset.append(offset)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _key(raw: bytes) -> str:
    """A token's text, or `bytes:\\\\x..` as OpenAI writes one that is no text by itself: keys must differ."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
