"""Events that are put together from parts are those that are encoded whole."""

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.api.answers import (
    Answer,
    ChatChunkChoice,
    ChatDelta,
    CompletionChoice,
    TextEvents,
    to_event,
)

TEXTS = st.lists(st.text(), min_size=1, max_size=4)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(TEXTS, NAMES, st.integers(0, 127))
def test_a_completion_event_from_parts_is_the_whole_one(texts: list[str], name: str, index: int) -> None:
    def whole(place: int, text: str) -> bytes:
        return to_event(Answer("id", "o", 1, name, [CompletionChoice(place, text, None, None)], None))

    events = TextEvents()
    assert [events.event(index, text, whole) for text in texts] == [whole(index, text) for text in texts]


@given(TEXTS, NAMES)
def test_a_chat_event_from_parts_is_the_whole_one_for_each_choice(texts: list[str], name: str) -> None:
    def whole(place: int, text: str) -> bytes:
        return to_event(Answer("id", "o", 1, name, [ChatChunkChoice(place, ChatDelta(content=text), None, None)]))

    events = TextEvents()
    for index in (0, 1, 0):
        assert [events.event(index, text, whole) for text in texts] == [whole(index, text) for text in texts]
