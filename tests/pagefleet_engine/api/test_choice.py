"""From token events to text, log-probabilities and an end."""

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.api.choice import Choice, Delta
from pagefleet_engine.api.stop import Pattern
from pagefleet_engine.wire import TokenEvent
from tests.pagefleet_engine.api.words import Words, events


def run(choice: Choice, told: list[TokenEvent]) -> list[Delta]:
    deltas = []
    for event in told:
        deltas.append(choice.push(event))
        if choice.finish_reason is not None:
            break
    return deltas


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def shown_bytes(deltas: list[Delta], words: Words) -> bytes:
    entries = [entry for delta in deltas for entry in delta.entries]
    return b"".join(words.token_bytes(entry.logprobs.token_id) for entry in entries if not entry.hidden)


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=12))
def test_without_stops_the_text_is_all_bytes_decoded_and_every_token_has_an_entry(pieces: list[bytes]) -> None:
    words = Words(pieces)
    deltas = run(Choice(words), events(list(range(len(pieces))), top=0))
    assert text(deltas) == b"".join(pieces).decode("utf-8", "replace")
    assert shown_bytes(deltas, words) == b"".join(pieces)
    assert [delta.finish_reason for delta in deltas] == [None] * (len(pieces) - 1) + ["length"]


@given(st.text(alphabet="ab世", min_size=1, max_size=12), st.text(alphabet="ab世", min_size=1, max_size=3))
def test_entries_stop_where_the_stop_string_begins(whole: str, stop: str) -> None:
    words = Words([bytes([byte]) for byte in whole.encode()])
    choice = Choice(words, [Pattern.of(stop)])
    deltas = run(choice, events(list(range(len(words.tokens))), top=0))
    before, found, _ = whole.partition(stop)
    assert text(deltas) == before
    assert shown_bytes(deltas, words) == before.encode()
    assert choice.finish_reason == ("stop" if found else "length")


def test_the_stop_token_and_markup_have_no_text_but_count_and_have_entries() -> None:
    words = Words([b"<turn>", b"hi", b"<end>"], special=[0, 2])
    choice = Choice(words)
    deltas = run(choice, events([0, 1, 2], "stop", top=1))
    assert text(deltas) == "hi"
    assert choice.completion_tokens == 3
    entries = [entry for delta in deltas for entry in delta.entries]
    assert [entry.hidden for entry in entries] == [True, False, True]
    assert choice.finish_reason == "stop"


def test_a_stop_string_that_is_complete_with_the_last_token_counts_as_stop() -> None:
    choice = Choice(Words([b"a", b"END"]), [Pattern.of("END")])
    assert text(run(choice, events([0, 1], "length"))) == "a"
    assert choice.finish_reason == "stop"


def test_a_stop_string_counts_only_after_the_least_tokens() -> None:
    choice = Choice(Words([b"E", b"ND", b"aEN", b"D", b"END"]), [Pattern.of("END")], min_tokens=2)
    assert text(run(choice, events([0, 1, 2, 3, 4], "length"))) == "ENDa"
    assert (choice.finish_reason, choice.completion_tokens) == ("stop", 4)


def test_an_unfinished_character_in_the_least_tokens_is_told_at_the_end() -> None:
    choice = Choice(Words([b"a", b"\xe4"]), [Pattern.of("\ufffd")], min_tokens=2)
    assert text(run(choice, events([0, 1], "length"))) == "a\ufffd"
    assert choice.finish_reason == "length"


def test_held_text_comes_out_at_the_end() -> None:
    choice = Choice(Words([b"a", b"EN"]), [Pattern.of("END")])
    assert [delta.text for delta in run(choice, events([0, 1], "length"))] == ["a", "EN"]


def test_an_unfinished_character_may_complete_a_stop_at_the_end() -> None:
    choice = Choice(Words([b"a", b"\xe4"]), [Pattern.of("\ufffd")])
    assert text(run(choice, events([0, 1], "length"))) == "a"
    assert choice.finish_reason == "stop"


def test_news_without_a_token_counts_nothing_and_the_first_cached_count_stays() -> None:
    choice = Choice(Words([b"a"]))
    delta = choice.push(TokenEvent(request_id=1, cached_prompt_tokens=16))
    assert delta == Delta("", (), None)
    choice.push(TokenEvent(request_id=1, token_id=0, finish_reason="length", cached_prompt_tokens=32))
    assert (choice.completion_tokens, choice.cached_prompt_tokens) == (1, 16)
