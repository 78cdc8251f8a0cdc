"""The API process's end of the socket when a message cannot be said or understood."""

import asyncio

import pytest
from msgspec.structs import replace

from pagefleet_engine.api import core_client
from pagefleet_engine.api.core_client import CoreClient
from pagefleet_engine.api.errors import Cut, Draining
from pagefleet_engine.core.channel import encode_frame
from pagefleet_engine.steps import Sampling
from pagefleet_engine.wire import StepReport, Submit, TokenEvent
from tests.pagefleet_engine.api.test_exposition import STATUS
from tests.pagefleet_engine.api.test_planning import READY


class Writer(asyncio.StreamWriter):
    """Goes nowhere."""

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


class Ear:
    def __init__(self) -> None:
        self.heard: list[TokenEvent] = []
        self.error: Exception | None = None

    def hear(self, event: TokenEvent, received_at_s: float) -> None:
        self.heard.append(event)

    def end(self, error: Exception) -> None:
        self.error = error


class Stubborn(Ear):
    def end(self, error: Exception) -> None:
        raise RuntimeError("cannot end")


def submit(request_id: int, stop_token_id: int = 1) -> Submit:
    return Submit(
        request_id=request_id,
        prompt_token_ids=(1,),
        max_tokens=1,
        sampling=Sampling(seed=0),
        stop_token_ids=(stop_token_id,),
    )


def client() -> CoreClient:
    return CoreClient(lambda: 0.0, lambda times: None, lambda: None)


async def converse(core: CoreClient, said: bytes) -> None:
    """Let a core say `said` and go."""
    reader = asyncio.StreamReader()
    reader.feed_data(said)
    reader.feed_eof()
    await core.converse(reader, Writer())


async def test_a_request_that_cannot_be_encoded_fails_alone() -> None:
    core, sound, odd = client(), Ear(), Ear()
    core.submit([submit(1)], sound)
    with pytest.raises(OverflowError):
        core.submit([submit(2), submit(3, 2**64)], odd)
    assert list(core._flights) == [1]
    await asyncio.sleep(0)
    assert (core.failure, sound.error) == (None, None)


async def test_a_frame_that_cannot_be_sent_is_a_lost_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(messages: object) -> bytes:
        raise OverflowError("too large")

    monkeypatch.setattr(core_client, "encode_frame", broken)
    core, ear = client(), Ear()
    talk = asyncio.create_task(core.converse(asyncio.StreamReader(), Writer()))
    await asyncio.sleep(0)
    core.submit([submit(1)], ear)
    await asyncio.sleep(0)
    assert "too large" in str(core.failure)
    assert ear.error is not None
    talk.cancel()


async def test_a_message_that_is_not_understood_is_a_lost_core() -> None:
    core, ear = client(), Ear()
    core.submit([submit(1)], ear)
    await converse(core, b"\x00\x00\x00\x01\xc1")
    assert "not understood" in str(core.failure)
    assert ear.error is not None


async def test_news_reaches_its_listener_and_none_after_the_last() -> None:
    core, ear = client(), Ear()
    core.submit([submit(1)], ear)
    last = TokenEvent(request_id=1, token_id=5, finish_reason="length")
    await converse(core, encode_frame(StepReport(events=(last, last))))
    assert [event.token_id for event in ear.heard] == [5]
    assert (ear.error, core.busy_since_s) == (None, None)


async def test_what_the_core_said_half_a_minute_ago_is_known_from_its_first_words_on() -> None:
    now = iter(float(second) for second in range(0, 100, 10))
    core = CoreClient(lambda: next(now), lambda times: None, lambda: None)
    said = [StepReport(status=replace(STATUS, decode_tokens_total=total)) for total in (1, 2, 3, 4, 5)]
    await converse(core, encode_frame(READY) + encode_frame(said[0]))
    assert core.recent.earlier is not None
    assert core.recent.earlier.decode_tokens_total == 0
    again = CoreClient(lambda: next(now), lambda times: None, lambda: None)
    await converse(again, encode_frame(READY) + b"".join(map(encode_frame, said)))
    assert again.status == said[-1].status
    assert again.recent.earlier == said[1].status


async def test_one_that_cannot_end_keeps_no_other_from_its_end() -> None:
    core = CoreClient(lambda: 0.0, lambda times: None, lambda: None)
    ears = [Stubborn() if place % 2 else Ear() for place in range(8)]
    for request_id, ear in enumerate(ears):
        core.submit([submit(request_id)], ear)
    core.end_all(Cut("the end"), Draining("the end"))
    assert [isinstance(ear.error, Cut) for ear in ears] == [True, False] * 4
