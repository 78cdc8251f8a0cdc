"""What clients get: whole and streamed answers of both endpoints."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from pagefleet_engine.api import logprobs, requests, transport
from pagefleet_engine.api.generation import Generation
from pagefleet_engine.wire import Submit
from tests.pagefleet_engine.server.inside import Inside, choices, engine, sse, stream_text

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


async def test_the_core_is_told_whose_request_it_is_and_not_by_name(
    fast: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Submit] = []
    core = fast.server.host.core
    submit = core.submit

    def heard(submits: Sequence[Submit], generation: Generation) -> None:
        told.extend(submits)
        submit(submits, generation)

    monkeypatch.setattr(core, "submit", heard)
    for user in ("somebody", "else", None):
        assert (await fast.complete("a", max_tokens=1, user=user)).status_code == 200
    tenants = [each.tenant for each in told]
    assert (len(set(tenants)), tenants[2], "somebody" in tenants) == (3, "", False)


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


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_every_chunk_tells_the_usage_so_far_where_asked(fast: Inside, path: str) -> None:
    asked: dict[str, Any] = (
        {"prompt": "hello"} if path == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    )
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = await stream(fast, path, max_tokens=5, stream_options=options, **asked)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 5
    assert all(chunk["usage"]["prompt_tokens"] == chunks[0]["usage"]["prompt_tokens"] > 0 for chunk in chunks)


async def test_the_tokens_of_a_stream_after_its_first_piece_wake_no_task(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []
    send = transport._send_piece

    async def count(sender: Any, piece: bytes) -> None:
        pieces.append(piece)
        await send(sender, piece)

    monkeypatch.setattr(transport, "_send_piece", count)
    async with engine(tiny, step_s=0.005) as running:
        text = stream_text(await stream(running, "completions", prompt="abcdefgh" * 5, max_tokens=40))
    assert text == "abcdefgh" * 5
    assert 2 <= len(pieces) <= 5


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
    found = (await fast.complete("hi", logprobs=0, max_tokens=2)).json()["choices"][0]["logprobs"]
    assert found["tokens"] == ["h", "i"]
    assert found["top_logprobs"] == [{"h": -0.5}, {"i": -0.5}]
    assert found["text_offset"] == [0, 1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_echo_without_an_answer_scores_the_prompt(fast: Inside, streamed: bool) -> None:
    body: dict[str, Any] = {"prompt": "Answer: Yes", "echo": True, "logprobs": 1, "max_tokens": 0}
    if streamed:
        events = await stream(fast, "completions", **body)
        text, scored = stream_text(events), choices(events)[0]["logprobs"]
    else:
        answer = (await fast.post("completions", **body)).json()
        assert answer["usage"]["completion_tokens"] == 0
        text, scored = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]
    assert text == "Answer: Yes" == "".join(scored["tokens"])
    assert scored["token_logprobs"][0] is None
    assert len(scored["token_logprobs"]) == len(scored["tokens"]) == len(scored["text_offset"])


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


async def test_a_completion_without_a_limit_gets_sixteen_tokens_or_what_room_there_is(fast: Inside) -> None:
    assert (await fast.complete("x" * 40)).json()["usage"]["completion_tokens"] == 16
    assert (await fast.complete("x" * 505)).json()["usage"]["completion_tokens"] == 7


async def test_a_prompt_is_read_once_and_scored_once_for_all_its_choices_off_the_loop(
    fast: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    reads: list[int] = []
    score, read = logprobs.prompt, requests._is_token_ids

    def scored(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return score(*args)

    def noted(value: list[Any], capacity: Any) -> bool:
        reads.append(len(value))
        return read(value, capacity)

    monkeypatch.setattr(logprobs, "prompt", scored)
    monkeypatch.setattr(requests, "_is_token_ids", noted)
    body: dict[str, Any] = {"prompt": [5] * 100, "echo": True, "logprobs": 1, "max_tokens": 2, "n": 3}
    whole = (await fast.post("completions", **body)).json()["choices"]
    assert whole[0]["logprobs"] == whole[2]["logprobs"]
    events = await stream(fast, "completions", **body)
    assert choices(events, 2)[0]["logprobs"]["tokens"] == whole[2]["logprobs"]["tokens"][:100]
    assert reads == [100, 100]
    assert len(threads) == 2
    assert all(name.startswith("text") for name in threads)


async def test_markup_in_an_echoed_prompt_keeps_text_tokens_and_offsets_together(fast: Inside) -> None:
    prompt = "a<|im_start|>b"
    choice = (await fast.complete(prompt, echo=True, logprobs=0, max_tokens=0)).json()["choices"][0]
    assert choice["text"] == prompt
    assert choice["logprobs"]["tokens"] == ["a", "<|im_start|>", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 13]


async def test_a_cache_salt_reaches_the_core_and_parts_caches(fast: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = fast.server.host.core.submit
    salts: list[str] = []

    def noted(submits: Any, *args: Any) -> Any:
        salts.extend(each.cache_salt for each in submits)
        return submit(submits, *args)

    monkeypatch.setattr(fast.server.host.core, "submit", noted)
    for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}):
        assert (await fast.complete("hi", max_tokens=1, **fields)).status_code == 200
    assert salts[0] == ""
    assert salts[1] == salts[3] != salts[2]
    assert "a" != salts[1] != ""


async def test_an_adapter_answers_who_names_it_and_is_listed_with_its_parent(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(tiny, "--adapter", "sql=/a", "--adapter", "chat=/b") as running:
        listed = (await running.client.get("/v1/models")).json()["data"]
        assert [(model["id"], model["parent"]) for model in listed] == [
            ("tiny", None), ("sql", "tiny"), ("chat", "tiny"),
        ]  # fmt: skip
        assert (await running.client.get("/v1/models/chat")).json() == listed[2]
        submit, asked = running.server.host.core.submit, list[int | None]()

        def noted(submits: Any, *args: Any) -> Any:
            asked.extend(each.adapter for each in submits)
            return submit(submits, *args)

        monkeypatch.setattr(running.server.host.core, "submit", noted)
        told = [(await running.complete("hi", max_tokens=1)).json()["model"]]
        told += [(await running.complete("hi", max_tokens=1, model=name)).json()["model"] for name in ("tiny", "sql")]
        told.append((await running.chat("hi", max_tokens=1, model="chat")).json()["model"])
        assert told == ["tiny", "tiny", "sql", "chat"]
        assert asked == [None, None, 0, 1]
        refused = await running.complete("hi", model="other")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert 'this server has "tiny", "sql", "chat"' in refused.json()["error"]["message"]


async def test_models_are_listed_and_found(fast: Inside) -> None:
    listed = (await fast.client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert listed["data"][0]["max_model_len"] == 512
    assert listed["data"][0]["root"] == "tiny"
    assert (listed["data"][0]["device"], listed["data"][0]["weights"]) == ("cpu", "the model's")
    assert (await fast.client.get("/v1/models/tiny")).json() == listed["data"][0]
    assert (await fast.client.get("/v1/models/org/other")).status_code == 404


@pytest.mark.parametrize(
    ("flags", "device", "told"),
    [
        (("--load-format", "dummy"), "cuda:0", ("cuda:0", "random (--load-format dummy)")),
        ((), "paced", ("paced (computes nothing)", "none")),
    ],
)
async def test_an_engine_that_only_measures_speed_says_so(
    tiny: Path, flags: tuple[str, ...], device: str, told: tuple[str, str]
) -> None:
    async with engine(tiny, *flags, device=device) as running:
        [model] = (await running.client.get("/v1/models")).json()["data"]
        assert (model["device"], model["weights"]) == told


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
