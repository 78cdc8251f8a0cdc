"""Frames over the socket: whole, in order, however the bytes are cut."""

import asyncio
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.core.channel import RECEIVE_BYTES, ChannelClosed, CoreChannel, encode_frame, read_frame
from pagefleet_engine.steps import Sampling, TokenLogprobs
from pagefleet_engine.wire import Abort, CoreFailed, FromCore, StepReport, Submit, ToCore, TokenEvent
from tests.pagefleet_engine.core.api_side import ApiSide


def pair() -> tuple[CoreChannel, ApiSide]:
    core, api = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return CoreChannel(core), ApiSide(api)


def request(number: int, prompt_tokens: int = 3) -> Submit:
    return Submit(
        request_id=number,
        prompt_token_ids=tuple(range(prompt_tokens)),
        max_tokens=5,
        sampling=Sampling(seed=2**63 - 1, logit_bias=((3, -100.0),), top_k=4),
        stop_token_ids=(2,),
        prompt_logprobs=0,
        cache_salt="tenant",
    )


MESSAGES: list[ToCore] = [request(1), Abort((1, 2)), request(2, 0)]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), max_size=30))
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(cuts: list[int]) -> None:
    core, api = pair()
    data = encode_frame(MESSAGES[:2]) + encode_frame([]) + encode_frame(MESSAGES[2:])
    heard: list[ToCore] = []
    start = 0
    for size in [*cuts, len(data)]:
        api.connection.sendall(data[start : start + size])
        start += size
        heard += core.receive(0.0)
    assert heard == MESSAGES
    core.close()
    api.connection.close()


def test_a_frame_larger_than_one_read_arrives_whole() -> None:
    core, api = pair()
    large = request(1, RECEIVE_BYTES // 2)
    assert len(encode_frame([large])) > RECEIVE_BYTES
    api.connection.setblocking(False)
    rest = memoryview(encode_frame([large]))
    heard: list[ToCore] = []
    while not heard:
        if rest:
            rest = rest[api.connection.send(rest) :]
        heard = core.receive(0.0)
    assert heard == [large]
    core.close()
    api.connection.close()


def test_waiting_for_nothing_ends_after_its_time() -> None:
    core, api = pair()
    assert core.receive(0.01) == []
    assert core.receive(0.0) == []
    api.connection.close()
    core.close()


def test_both_directions_notice_that_the_api_process_has_gone() -> None:
    core, api = pair()
    api.connection.close()
    with pytest.raises(ChannelClosed):
        core.receive(1.0)
    with pytest.raises(ChannelClosed):
        core.send(StepReport())
    core.close()


def test_an_api_process_that_left_without_reading_is_a_closed_channel() -> None:
    core, api = pair()
    core.send(StepReport())
    api.connection.close()
    with pytest.raises(ChannelClosed):
        core.receive(1.0)
    core.close()


def test_connecting_to_nobody_is_a_closed_channel(tmp_path: Path) -> None:
    with pytest.raises(ChannelClosed, match="nobody listens"):
        CoreChannel.connect(str(tmp_path / "none"))


async def test_the_api_process_reads_with_asyncio_until_the_core_closes() -> None:
    core, api = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = CoreChannel(core)
    logprobs = TokenLogprobs(3, -0.5, ((3, -0.5),))
    said: list[FromCore] = [
        StepReport(events=(TokenEvent(request_id=1, token_id=3, logprobs=logprobs),)),
        CoreFailed("out of memory"),
    ]
    for message in said:
        channel.send(message)
    channel.close()
    reader, writer = await asyncio.open_connection(sock=api)
    assert [await read_frame(reader), await read_frame(reader)] == said
    with pytest.raises(ChannelClosed):
        await read_frame(reader)
    writer.close()


async def test_a_core_that_dies_within_a_frame_is_a_closed_channel() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode_frame(StepReport())[:-1])
    reader.feed_eof()
    with pytest.raises(ChannelClosed):
        await read_frame(reader)
