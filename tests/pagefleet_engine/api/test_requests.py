"""Bodies at the door."""

import json
from typing import Any

import pytest

from pagefleet_engine.api.errors import ContextTooLong, InvalidRequest
from pagefleet_engine.api.requests import ChatRequest, CompletionRequest, GenerationRequest, body_limit_bytes, parse
from pagefleet_engine.scheduler.admission import Capacity

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"messages": MESSAGES, **fields}).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, json.dumps({"prompt": "hi", **fields}).encode())


def test_absent_fields_have_the_documented_defaults() -> None:
    assert completion().max_tokens is None
    assert chat().answer_tokens is None
    assert (chat().choices, chat().stops, chat().alternatives, chat().include_usage) == (1, (), None, False)


def test_null_is_the_same_as_absent() -> None:
    nulls = dict.fromkeys(["temperature", "n", "stop", "seed", "max_tokens", "logprobs", "tools", "response_format"])
    assert chat(**nulls).choices == 1


def test_unknown_fields_are_ignored() -> None:
    assert chat(user="u", metadata={"a": "b"}, store=True, service_tier="auto", some_client_extra=[1]).choices == 1


def test_the_newer_name_for_the_longest_answer_wins() -> None:
    request = chat(max_tokens=5, max_completion_tokens=7)
    assert (request.answer_tokens, request.answer_tokens_field) == (7, "max_completion_tokens")
    assert chat(max_tokens=5).answer_tokens_field == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)],
)
def test_logprobs_without_alternatives_ask_for_the_chosen_token_alone(
    fields: dict[str, Any], alternatives: int | None
) -> None:
    assert chat(**fields).alternatives == alternatives


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 10**400}, "top_p"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_k": float("inf")}, "top_k"),
        ({"n": 10**4000}, "n"),
        ({"best_of": 10**4000}, "best_of"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_completion_tokens": 10**4000}, "max_completion_tokens"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias.5"),
        ({"logit_bias": {"5": 10**400}}, "logit_bias.5"),
        ({"min_p": float("nan")}, "min_p"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 2**31}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"user": 7}, "user"),
        ({"user": "x" * 1025}, "user"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
        ({"typical_p": 0.9}, "typical_p"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["end", "x" * 1025]}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"best_of": 2}, "best_of"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-320}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1.5}, "min_tokens"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_a_chat_field_out_of_range_or_unsupported_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(**fields)
    assert refused.value.param == param
    assert param.split(".")[0].split("[")[0] in refused.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**4000}, "max_tokens"),
        ({"logprobs": float("inf")}, "logprobs"),
        ({"prompt": [float("inf")]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2, "n": 1}, "best_of"),
    ],
)
def test_a_completion_field_out_of_range_or_unsupported_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        completion(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"repetition_penalty": 1.0, "min_p": 0, "min_tokens": 0},
        {"repetition_penalty": 0.01, "stop": ["x" * 1024] * 16},
        {"top_k": -1},
        {"top_k": 0},
        {"best_of": 2, "n": 2},
        {"temperature": 0, "top_p": 1},
        {"seed": -5},
        {"stop": ["a", "b"]},
        {"skip_special_tokens": True},
        {"typical_p": 1.0, "no_repeat_ngram_size": 0},
        {"reasoning_effort": "none"},
        {"cache_salt": "tenant"},
        {"stream": True, "stream_options": {"continuous_usage_stats": False, "include_obfuscation": False}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"presence_penalty": 2, "frequency_penalty": -2.0, "repetition_penalty": 1.3, "min_p": 1, "min_tokens": 3},
    ],
)
def test_neutral_values_pass(fields: dict[str, Any]) -> None:
    assert chat(**fields)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3))), ("", ("",))],
)
def test_a_prompt_is_text_texts_token_ids_or_lists_of_them(given: Any, prompts: Any) -> None:
    assert completion(prompt=given).prompts == prompts


def test_a_completion_without_a_prompt_is_told_so() -> None:
    with pytest.raises(InvalidRequest, match="prompt is missing"):
        parse(CompletionRequest, b"{}")


@pytest.mark.parametrize("prompt", [[0] * 33, [[1], [0] * 33], [0] * 32 + ["not looked at"]])
def test_more_token_ids_than_can_ever_run_are_refused_before_they_are_read(prompt: Any) -> None:
    body = json.dumps({"prompt": prompt}).encode()
    with pytest.raises(ContextTooLong, match=r"33 tokens.*32 tokens") as refused:
        parse(CompletionRequest, body, Capacity(max_model_len=100, num_blocks=2, vocab_size=50))
    assert refused.value.param == "prompt"


def test_as_many_token_ids_as_can_run_and_more_prompts_than_that_are_read() -> None:
    bounds = Capacity(max_model_len=100, num_blocks=2, vocab_size=50)
    for given in ([0] * 32, ["a"] * 40, [[0]] * 40):
        assert parse(CompletionRequest, json.dumps({"prompt": given}).encode(), bounds).prompts


@pytest.mark.parametrize(
    ("most_text_bytes", "limit"), [(100, 4 << 20), (1 << 20, 6 << 20), (10 << 20, 32 << 20), (1 << 40, 32 << 20)]
)
def test_a_body_may_hold_any_prompt_that_can_run_within_bounds(most_text_bytes: int, limit: int) -> None:
    assert body_limit_bytes(most_text_bytes) == limit


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'"x"', b"\xff", b"null", b'{"messages": }'])
def test_what_is_no_json_object_is_refused(kind: type[GenerationRequest], body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the body"):
        parse(kind, body)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match="messages is missing"):
        parse(ChatRequest, b"{}")


def test_the_message_shows_the_value_and_what_is_allowed() -> None:
    with pytest.raises(InvalidRequest, match="top_logprobs: input should be less than or equal to 20, but it is 21"):
        chat(logprobs=True, top_logprobs=21)
    with pytest.raises(InvalidRequest, match=r'tool_choice .*"required".*send: null, "none", "auto"'):
        chat(tool_choice="required")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(stop=list(range(10_000)))
    assert len(refused.value.message) < 300
