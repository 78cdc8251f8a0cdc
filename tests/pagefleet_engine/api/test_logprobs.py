"""The forms of log-probabilities."""

from pagefleet_engine.api import logprobs
from pagefleet_engine.api.choice import Entry
from pagefleet_engine.steps import TokenLogprobs
from tests.pagefleet_engine.api.words import Words

WORDS = Words([b"a", "世".encode()[:1], "世".encode()[1:], b"<end>"], special=[3])
ENTRIES = [
    Entry(TokenLogprobs(1, -0.1, ((1, -0.1), (0, -2.0))), 0, hidden=False),
    Entry(TokenLogprobs(2, -0.2, ((2, -0.2),)), 0, hidden=False),
    Entry(TokenLogprobs(3, -0.3, ((3, -0.3),)), 1, hidden=True),
]


def test_joined_bytes_of_chat_tokens_are_the_content_and_alternatives_keep_their_own() -> None:
    content = logprobs.chat(ENTRIES, WORDS).content
    assert b"".join(bytes(token.bytes) for token in content) == "世".encode()
    assert [token.token for token in content] == ["\ufffd", "\ufffd\ufffd", "<end>"]
    assert [(top.token, top.bytes) for top in content[0].top_logprobs] == [("\ufffd", [0xE4]), ("a", [97])]


def test_completion_tokens_that_are_no_text_alone_have_keys_of_their_own() -> None:
    found = logprobs.completion(ENTRIES, WORDS, base_chars=5)
    assert found.tokens == ["bytes:\\xe4", "bytes:\\xb8\\x96", "<end>"]
    assert found.text_offset == [5, 5, 6]
    assert found.top_logprobs[0] == {"bytes:\\xe4": -0.1, "a": -2.0}


def test_the_chosen_token_is_among_the_alternatives_even_if_it_is_unlikely() -> None:
    entry = Entry(TokenLogprobs(0, -9.0, ((3, -0.1),)), 0, hidden=False)
    assert logprobs.completion([entry], WORDS, 0).top_logprobs == [{"<end>": -0.1, "a": -9.0}]


def test_the_first_prompt_token_has_no_logprob() -> None:
    given = [TokenLogprobs(0, -1.0, ()), TokenLogprobs(0, -2.0, ())]
    found = logprobs.prompt([3, 0, 0], given, [0, 0, 1], WORDS)
    assert found.tokens == ["<end>", "a", "a"]
    assert found.token_logprobs == [None, -1.0, -2.0]
    assert found.text_offset == [0, 0, 1]
