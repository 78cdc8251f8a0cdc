"""What a body costs before anything of it is served: in proportion to its size, whatever is in it."""

import time
import tracemalloc
from typing import NamedTuple

import pytest

from pagefleet_engine.api import body_values
from pagefleet_engine.api.errors import InvalidRequest
from pagefleet_engine.api.requests import BODY_LIMIT_BYTES, ChatRequest, CompletionRequest, GenerationRequest, parse
from pagefleet_engine.scheduler.admission import Capacity

BODY_BYTES = 1 << 20
"""A quarter of what every engine reads, whatever its window."""
CPU_S = 0.4
MEMORY_BYTES = 40 << 20
CHAT = b'{"messages":[{"role":"user","content":"a"}],"stream":true,'


class Shape(NamedTuple):
    """A body of `BODY_BYTES` that has as many items as there is room for; `%d` in one is another number in each."""

    kind: type[GenerationRequest]
    head: bytes
    item: bytes
    tail: bytes

    def body(self) -> bytes:
        room_bytes = BODY_BYTES - len(self.head) - len(self.tail)
        if b"%d" not in self.item:
            return self.head + b",".join([self.item] * (room_bytes // (len(self.item) + 1))) + self.tail
        numbers = range(10**6, 10**6 + room_bytes // (len(self.item % 10**6) + 1))
        return self.head + b",".join([self.item % number for number in numbers]) + self.tail


SHAPES = {
    "messages that are numbers": Shape(ChatRequest, b'{"messages":[', b"1", b"]}"),
    "messages that are lists": Shape(ChatRequest, b'{"messages":[', b"[]", b"]}"),
    "empty messages": Shape(ChatRequest, b'{"messages":[', b"{}", b"]}"),
    "short messages": Shape(ChatRequest, b'{"messages":[', b'{"role":"user","content":""}', b"]}"),
    "a message of many fields": Shape(ChatRequest, b'{"messages":[{', b'"%d":1', b"}]}"),
    "biases that are no numbers": Shape(ChatRequest, CHAT + b'"logit_bias":{', b'"%d":"a"', b"}}"),
    "many biases": Shape(ChatRequest, CHAT + b'"logit_bias":{', b'"%d":1', b"}}"),
    "stop of numbers": Shape(ChatRequest, CHAT + b'"stop":[', b"1", b"]}"),
    "stop of lists": Shape(ChatRequest, CHAT + b'"stop":[', b"[]", b"]}"),
    "stop of many strings": Shape(ChatRequest, CHAT + b'"stop":[', b'"a"', b"]}"),
    "stop token ids that are text": Shape(ChatRequest, CHAT + b'"stop_token_ids":[', b'""', b"]}"),
    "many stop token ids": Shape(ChatRequest, CHAT + b'"stop_token_ids":[', b"1", b"]}"),
    "tools of tools": Shape(ChatRequest, CHAT + b'"tools":[', b"[" * 90 + b"]" * 90, b"]}"),
    "a large response format": Shape(ChatRequest, CHAT + b'"response_format":{', b'"%d":1', b"}}"),
    "metadata of objects": Shape(ChatRequest, CHAT + b'"metadata":[', b"{}", b"]}"),
    "many unknown fields": Shape(ChatRequest, CHAT, b'"%d":1', b"}"),
    "many stream options": Shape(ChatRequest, CHAT + b'"stream_options":{', b'"%d":1', b"}}"),
    "one wrong field many times": Shape(ChatRequest, CHAT, b'"n":""', b"}"),
    "a model that is a list": Shape(ChatRequest, CHAT + b'"model":[', b"1", b"]}"),
    "prompts of token ids": Shape(CompletionRequest, b'{"prompt":[', b"[1]", b"]}"),
    "many prompts": Shape(CompletionRequest, b'{"prompt":[', b'"a"', b"]}"),
    "a prompt of many token ids": Shape(CompletionRequest, b'{"prompt":[', b"1000", b"]}"),
    "a prompt of numbers and text": Shape(CompletionRequest, b'{"prompt":[', b"1", b',""]}'),
    "a prompt of broken numbers": Shape(CompletionRequest, b'{"prompt":[', b"1.5", b"]}"),
    "a prompt that is an object": Shape(CompletionRequest, b'{"prompt":{', b'"%d":1', b"}}"),
    "a prompt of brackets": Shape(CompletionRequest, b'{"prompt":"', b"{[", b'"}'),
    "many prompts of brackets": Shape(CompletionRequest, b'{"prompt":[', b'"{[{[{[{["', b"]}"),
    "a list": Shape(ChatRequest, b"[", b"1", b"]"),
    "a list without end": Shape(ChatRequest, CHAT + b'"x":[', b"1", b""),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_body_costs_no_more_than_its_size_allows(shape: Shape) -> None:
    body = shape.body()

    def answered() -> str:
        try:
            return type(parse(shape.kind, body)).__name__
        except InvalidRequest as refused:
            return refused.message

    begun_s = time.process_time()
    said = answered()
    took_s = time.process_time() - begun_s
    tracemalloc.start()
    answered()
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < CPU_S, f"{took_s:.2f} s until: {said}"
    assert most_bytes < MEMORY_BYTES, f"{most_bytes >> 20} MiB until: {said}"
    assert len(said) < 300


@pytest.mark.parametrize("item", [b"1,", rb"\",", b'"\\'])
def test_the_largest_body_of_the_smallest_values_is_refused_in_time(item: bytes) -> None:
    body = b'{"prompt":[' + item * (BODY_LIMIT_BYTES // len(item)) + b"1]}"
    begun_s = time.process_time()
    with pytest.raises(InvalidRequest, match="the body"):
        parse(CompletionRequest, body)
    took_s = time.process_time() - begun_s
    assert took_s < 5, f"{took_s:.2f} s"


def test_a_prompt_may_fill_a_window_of_more_than_a_million_tokens() -> None:
    wide = Capacity(max_model_len=1 << 20, num_blocks=1 << 16, vocab_size=10)
    ids = (wide.window_tokens - 1) * b"1," + b"1"
    with pytest.raises(InvalidRequest, match="the body has more than"):
        parse(CompletionRequest, b'{"prompt":[%b]}' % ids)
    body_values.check(b'{"prompt":[%b]}' % ids, wide.window_tokens)


def test_brackets_in_text_are_text_and_those_outside_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_values, "MAX_CONTAINERS", 3)
    monkeypatch.setattr(body_values, "MAX_VALUES", 3)
    texts = [b"{{{{[[[[", b",,,,", rb"\"{{{{", rb"\\\"[[[[", rb"\n{{{{\\"]
    for text in texts:
        assert parse(CompletionRequest, b'{"prompt":["%b","%b"]}' % (text, text)).prompts
    for body in [b'{"prompt":[[1],[2]]}', b'{"prompt":[1,2,3,4,5]}', b'{"prompt":["","","","",""]}']:
        with pytest.raises(InvalidRequest, match="the body has more than 3 objects and lists, or more than 3 values"):
            parse(CompletionRequest, body)
