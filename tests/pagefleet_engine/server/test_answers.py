"""What clients get: whole and streamed answers of both endpoints."""

from typing import Any

import openai
import pytest

from tests.pagefleet_engine.server.inside import Inside, choices, sse, stream_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "A 世界 👩‍🚀 น้ำ 삼겹살"
TEXT_TOKENS = len(TEXT.encode())


async def stream(fast: Inside, path: str, **body: Any) -> list[Any]:
    response = await fast.post(path, stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return sse(response.text)


async def test_a_completion_repeats_the_fake_cores_tokens_with_usage(fast: Inside) -> None:
    answer = (await fast.complete(TEXT, max_tokens=TEXT_TOKENS)).json()
    assert answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {
        "prompt_tokens": TEXT_TOKENS,
        "completion_tokens": TEXT_TOKENS,
        "total_tokens": 2 * TEXT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 16, TEXT_TOKENS, 60])
async def test_streamed_text_equals_whole_text_at_every_length(fast: Inside, max_tokens: int) -> None:
    whole = (await fast.complete(TEXT, max_tokens=max_tokens)).json()["choices"][0]
    events = await stream(fast, "completions", prompt=TEXT, max_tokens=max_tokens)
    assert stream_text(events) == whole["text"]
    assert "\ufffd" not in "".join(c["text"] for c in choices(events)[:-2])
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize("stop", ["世界", "界 👩", ["\u200d🚀"], ["삼겹살x", "겹"], ["A 世", " 世"], "absent"])
async def test_nothing_of_a_stop_string_is_seen_in_either_form(fast: Inside, stop: Any) -> None:
    first = TEXT + "."
    stops = [stop] if isinstance(stop, str) else stop
    whole = (await fast.complete(first, max_tokens=200, stop=stop)).json()
    events = await stream(
        fast, "completions", prompt=first, max_tokens=200, stop=stop, stream_options={"include_usage": True}
    )
    assert stream_text(events) == whole["choices"][0]["text"]
    assert not any(each in whole["choices"][0]["text"] for each in stops)
    assert choices(events)[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-2]["usage"] == whole["usage"]


async def test_a_stream_has_one_role_one_finish_and_usage_only_in_its_last_chunk(fast: Inside) -> None:
    events = await stream(
        fast,
        "chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=7,
        n=3,
        stream_options={"include_usage": True},
    )
    *chunks, usage, done = events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 21)
    for index in range(3):
        mine = choices(events, index)
        assert [c["delta"].get("role") for c in mine].count("assistant") == 1
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]
        assert mine[-1] == {"index": index, "delta": {}, "logprobs": None, "finish_reason": "length"}


async def test_a_stream_without_the_option_has_no_usage(fast: Inside) -> None:
    events = await stream(fast, "completions", prompt="hi", max_tokens=2)
    assert all("usage" not in event for event in events[:-1])


@pytest.mark.parametrize("top", [None, 0, 3])
async def test_joined_bytes_of_chat_logprobs_are_the_content(fast: Inside, top: int | None) -> None:
    asked = {"logprobs": True, "max_tokens": 8 + TEXT_TOKENS} | ({} if top is None else {"top_logprobs": top})
    choice = (await fast.chat(TEXT, **asked)).json()["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in tokens) == choice["message"]["content"].encode()
    assert {len(token["top_logprobs"]) for token in tokens} == {top or 0}
    events = await stream(fast, "chat/completions", messages=[{"role": "user", "content": TEXT}], **asked)
    streamed = [token for c in choices(events) if c["logprobs"] for token in c["logprobs"]["content"]]
    assert streamed == tokens


async def test_completion_logprobs_zero_gives_the_chosen_token_alone(fast: Inside) -> None:
    logprobs = (await fast.complete("hi", logprobs=0, max_tokens=2)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "i"]
    assert logprobs["top_logprobs"] == [{"h": -0.5}, {"i": -0.5}]
    assert logprobs["text_offset"] == [0, 1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_echo_without_an_answer_scores_the_prompt(fast: Inside, streamed: bool) -> None:
    body: dict[str, Any] = {"prompt": "Answer: Yes", "echo": True, "logprobs": 1, "max_tokens": 0}
    if streamed:
        events = await stream(fast, "completions", **body)
        text, logprobs = stream_text(events), choices(events)[0]["logprobs"]
    else:
        answer = (await fast.post("completions", **body)).json()
        assert answer["usage"]["completion_tokens"] == 0
        text, logprobs = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]
    assert text == "Answer: Yes" == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["token_logprobs"]) == len(logprobs["tokens"]) == len(logprobs["text_offset"])


async def test_echo_puts_the_prompt_before_the_answer(fast: Inside) -> None:
    choice = (await fast.complete("hi", echo=True, logprobs=1, max_tokens=2)).json()["choices"][0]
    assert choice["text"] == "hihi"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert stream_text(await stream(fast, "completions", prompt="hi", echo=True, max_tokens=2)) == "hihi"


async def test_several_prompts_give_choices_in_their_order(fast: Inside) -> None:
    answer = (await fast.complete(["ab", "cd"], n=2, max_tokens=2, echo=True)).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [
        (0, "abab"),
        (1, "abab"),
        (2, "cdcd"),
        (3, "cdcd"),
    ]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 8


async def test_token_ids_are_prompts_too(fast: Inside) -> None:
    ids = [ord("h") - ord("!"), ord("i") - ord("!")]
    assert (await fast.complete(ids, max_tokens=2)).json()["usage"]["prompt_tokens"] == 2
    assert len((await fast.complete([ids, ids], max_tokens=2)).json()["choices"]) == 2


async def test_an_answer_without_a_limit_is_cut_at_the_window(fast: Inside) -> None:
    usage = (await fast.chat("hi", ignore_eos=True)).json()["usage"]
    assert usage["total_tokens"] == 512


async def test_models_are_listed_and_found(fast: Inside) -> None:
    listed = (await fast.client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert listed["data"][0]["max_model_len"] == 512
    assert (await fast.client.get("/v1/models/tiny")).json() == listed["data"][0]
    assert (await fast.client.get("/v1/models/org/other")).status_code == 404


async def test_the_request_id_comes_back(fast: Inside) -> None:
    response = await fast.client.get("/v1/models", headers={"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert (await fast.client.get("/v1/models")).headers["x-request-id"]


async def test_the_openai_library_reads_answers_streams_and_errors(fast: Inside) -> None:
    client = openai.AsyncOpenAI(base_url=f"{fast.client.base_url}/v1", api_key="none", max_retries=0)
    answer = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=8, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].message.content
    assert content
    assert content.startswith("user\nhi")
    streaming = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=8, stream=True
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in streaming]) == content
    assert (await client.completions.create(model="tiny", prompt="hi", max_tokens=2)).choices[0].text == "hi"
    assert [model.id async for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        await client.completions.create(model="other", prompt="hi")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="tiny", prompt="hi", temperature=9)
    assert refused.value.param == "temperature"
