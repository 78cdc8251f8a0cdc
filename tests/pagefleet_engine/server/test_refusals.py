"""Everything that is refused is refused in OpenAI's shape, before any byte of a stream."""

import asyncio
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pagefleet_engine.api.requests import BODY_LIMIT_BYTES
from tests.pagefleet_engine.server.inside import Inside, engine, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGES = [{"role": "user", "content": "hi"}]


def error(response: Any) -> dict[str, Any]:
    found = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return dict(found)


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/", b"", 404, "unknown_url"),
        ("GET", "/v1/unknown", b"", 404, "unknown_url"),
        ("GET", "/v1/models/", b"", 404, "model_not_found"),
        ("GET", "/v1/completions", b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", b"", 405, "method_not_allowed"),
        ("POST", "/v1/completions", b"{not json", 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"prompt": "a", "model": "other"}', 404, "model_not_found"),
        ("POST", "/v1/completions", b'{"prompt": ""}', 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'{"messages": [], "stream": true}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"prompt": "a", "stream": true, "n": 0}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"prompt": [99999], "stream": true}', 400, "invalid_value"),
        ("GET", "/load", b"", 404, "unknown_url"),
        ("GET", "/healthz", b"", 404, "unknown_url"),
        ("POST", "/drain", b"", 404, "unknown_url"),
        ("GET", "/docs", b"", 404, "unknown_url"),
    ],
)
async def test_every_refusal_has_the_shape_that_clients_parse(
    fast: Inside, method: str, path: str, content: bytes, status: int, code: str
) -> None:
    response = await fast.client.request(method, path, content=content)
    assert (response.status_code, error(response)["code"]) == (status, code)
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/completions", {"prompt": "a", "model": "x" * 200_000}),
        ("POST", "/v1/completions", {"prompt": "a", "seed": "x" * 200_000}),
        ("POST", "/v1/completions", {"prompt": "a", "logit_bias": {"x" * 200_000: 1}}),
        ("POST", "/v1/completions", {"prompt": "a", "logit_bias": {"x" * 200_000: "a"}}),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "x" * 200_000, "content": ""}]}),
        ("GET", f"/v1/models/{'x' * 5000}", None),
        ("GET", f"/{'x' * 5000}", None),
        ("PUT", f"/v1/models/{'x' * 5000}", None),
    ],
)
async def test_a_refusal_is_short_however_long_what_it_refuses(
    fast: Inside, method: str, path: str, body: dict[str, Any] | None
) -> None:
    response = await fast.client.request(method, path, json=body)
    assert response.status_code in (400, 404, 405)
    assert len(response.content) < 500, response.content[:1000]


async def test_a_prompt_and_answer_over_the_window_are_refused_with_all_three_numbers(fast: Inside) -> None:
    refused = await fast.complete("word " * 20, max_tokens=500)
    found = error(refused)
    assert (refused.status_code, found["param"], found["code"]) == (400, "max_tokens", "context_length_exceeded")
    assert all(number in found["message"] for number in ("512", "500", "100"))
    refused = await fast.chat("word " * 20, max_completion_tokens=500)
    assert error(refused)["param"] == "max_completion_tokens"
    assert "max_completion_tokens is 500" in error(refused)["message"]
    assert "max_tokens" not in error(refused)["message"]
    refused = await fast.chat("word " * 200)
    assert error(refused)["param"] == "messages"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "alien", "content": "hi"}], "messages[0].role must be one of system, developer"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"content": "hi"}], "messages[0].role"),
    ],
)
async def test_messages_that_the_template_cannot_take_are_the_clients_error(
    fast: Inside, messages: Any, said: str
) -> None:
    refused = await fast.post("chat/completions", messages=messages, stream=True)
    assert refused.status_code == 400
    assert said in error(refused)["message"]
    assert (await fast.chat("hi", max_tokens=1)).status_code == 200


async def test_text_parts_are_content(fast: Inside) -> None:
    parts = [{"type": "text", "text": "hi"}]
    assert (await fast.post("chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=1)).is_success


async def test_a_body_over_the_limit_is_refused_by_its_length_and_by_its_bytes(fast: Inside) -> None:
    async def endless() -> Any:
        for _ in range(BODY_LIMIT_BYTES // (1 << 20) + 1):
            yield b" " * (1 << 20)

    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY_LIMIT_BYTES + 1}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", fast.client.base_url.port)
    writer.write(head.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()
    refused = await fast.client.post("/v1/completions", content=endless())
    assert (refused.status_code, error(refused)["code"]) == (413, "body_too_large")


async def test_a_chat_body_over_what_its_window_can_need_is_refused_with_the_limit(fast: Inside) -> None:
    refused = await fast.chat("hi", ignored="x" * (4 << 20))
    assert (refused.status_code, error(refused)["code"]) == (413, "body_too_large")
    assert "4 MiB" in error(refused)["message"]
    assert (await fast.complete("hi", ignored="x" * (4 << 20))).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [2**64]}, "stop_token_ids"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"prompt": [2**64]}, "prompt"),
        ({"prompt": [0] * 513}, "prompt"),
        ({"seed": 2**64}, "seed"),
        ({"priority": 1}, "priority"),
    ],
)
async def test_numbers_that_the_engine_could_not_take_are_refused_and_cost_nobody_else(
    fast: Inside, fields: dict[str, Any], param: str
) -> None:
    good = asyncio.create_task(fast.complete("abcd", max_tokens=4))
    refused = await fast.post("completions", **{"prompt": "a", "stream": True, **fields})
    assert (refused.status_code, error(refused)["param"]) == (400, param)
    assert (await good).status_code == 200


async def test_refusals_are_counted_by_reason_and_are_no_requests(fast: Inside) -> None:
    series = 'pagefleet_rejections_total{model_name="tiny",reason="invalid_value"}'
    before, requests = await fast.metric(series), await fast.requests_total()
    await fast.complete("a", n=0)
    await fast.client.get("/v1/nothing")
    assert await fast.metric(series) == before + 1
    assert await fast.requests_total() == requests


async def test_a_model_without_a_template_tells_chat_clients_the_way_out(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    async with engine(tmp_path) as running:
        refused = await running.chat("hi")
        assert refused.status_code == 400
        assert "--chat-template" in error(refused)["message"]
        assert (await running.complete("hi")).status_code == 200


async def test_a_template_file_takes_the_place_of_the_models(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}abc")
    async with engine(tiny, "--chat-template", str(path)) as running:
        answer = (await running.chat("hi", max_tokens=3)).json()
        assert answer["choices"][0]["message"]["content"] == "abc"
        refused = await running.post("chat/completions", messages=[{"role": "system", "content": "x"}, *MESSAGES])
        assert "no system" in error(refused)["message"]


async def test_with_keys_only_their_holders_get_in_and_probes_need_none(tiny: Path) -> None:
    async with engine(tiny, keys=("alpha", "beta"), admin=False) as running:
        for path in ("/v1/models", "/load", "/metrics"):
            assert (await running.client.get(path)).status_code == 401
            held = {"authorization": "Bearer beta"}
            assert (await running.client.get(path, headers=held)).status_code == 200
        for path in ("/drain", "/undrain", "/v1/completions", "/v1/chat/completions"):
            refused = await running.client.post(path, json={}, headers={"authorization": "Bearer gamma"})
            assert (refused.status_code, error(refused)["code"]) == (401, "invalid_api_key")
        for path in ("/healthz", "/readyz"):
            assert (await running.client.get(path)).status_code == 200


async def test_with_keys_the_admin_port_needs_none(tiny: Path) -> None:
    async with engine(tiny, keys=("alpha",)) as running:
        assert (await running.admin.get("/load")).status_code == 200
        assert (await running.admin.get("/metrics")).status_code == 200
        assert (await running.admin.get("/v1/models")).status_code == 404


async def test_a_full_queue_refuses_at_once_and_counts_and_the_rest_succeeds(tiny: Path) -> None:
    async with engine(tiny, "--max-num-seqs", "1", "--max-queued-requests", "4", step_s=0.02) as running:

        async def timed() -> tuple[int, float, Any]:
            begin = time.monotonic()
            response = await running.complete("hi", max_tokens=15, ignore_eos=True)
            return response.status_code, time.monotonic() - begin, response

        asked = [asyncio.create_task(timed()) for _ in range(20)]
        waiting = []
        while not all(task.done() for task in asked):
            waiting.append((await running.load())["waiting"])
            await asyncio.sleep(0.02)
        answers = [task.result() for task in asked]
        refused = [answer for answer in answers if answer[0] == 429]
        assert [answer[0] for answer in answers].count(200) == 5
        assert len(refused) == 15
        latest_s, last_answer_s = (max(each[1] for each in answers if each[0] == status) for status in (429, 200))
        assert latest_s < last_answer_s / 2, f"refused after {latest_s:.2f} s, last answer after {last_answer_s:.2f} s"
        assert all(int(response.headers["retry-after"]) >= 1 for _, _, response in refused)
        assert await running.metric('pagefleet_rejections_total{model_name="tiny",reason="queue_full"}') == 15
        assert 3 <= max(waiting) <= 4
        assert (await running.requests_total())["length"] == 5


async def test_a_full_queue_refuses_before_it_reads_the_body(tiny: Path) -> None:
    async with engine(tiny, "--max-num-seqs", "1", "--max-queued-requests", "0", step_s=0.02) as running:
        open_now = asyncio.create_task(running.complete("hi", max_tokens=400, ignore_eos=True))
        await until(lambda: running.server.host.gate.open_sequences == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.client.base_url.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{")
        assert (await asyncio.wait_for(reader.readline(), 2)).startswith(b"HTTP/1.1 429")
        writer.close()
        open_now.cancel()


async def test_choices_count_against_the_queue_one_by_one(tiny: Path) -> None:
    async with engine(tiny, "--max-num-seqs", "1", "--max-queued-requests", "3", step_s=0.02) as running:
        first = asyncio.create_task(running.complete("hi", max_tokens=5, n=3))
        await until(lambda: running.server.host.gate.open_sequences == 3)
        assert (await running.complete("hi", n=2)).status_code == 429
        assert (await first).status_code == 200
        for prompt, fields, param in (
            ("hi", {"n": 5}, "n"),
            (["hi"] * 3, {"n": 2}, "n"),
            (["hi"] * 5, {}, "prompt"),
            (["hi"] * 5, {"n": 2}, "prompt"),
        ):
            refused = await running.complete(prompt, **fields)
            assert (refused.status_code, error(refused)["param"]) == (400, param)


async def test_while_the_model_loads_probes_answer_and_requests_are_told_to_wait(tiny: Path) -> None:
    hold = threading.Event()
    async with engine(tiny, ready=False, hold=hold) as running:
        assert (await running.admin.get("/healthz")).json() == {"healthy": True, "state": "starting"}
        ready = await running.admin.get("/readyz")
        assert (ready.status_code, ready.json()["state"]) == (503, "starting")
        assert ready.json()["phase"] in ("import", "load")
        for refused in (await running.complete("hi"), await running.client.get("/v1/models")):
            assert (refused.status_code, error(refused)["code"]) == (503, "starting")
            assert int(refused.headers["retry-after"]) >= 1
        assert (await running.admin.get("/load")).status_code == 503
        assert "pagefleet_engine_state" in (await running.admin.get("/metrics")).text
        hold.set()
        await until(lambda: running.server.host.gate.was_ready)
        assert (await running.load())["blocksUsed"] == 0
        assert (await running.admin.get("/readyz")).status_code == 200
        assert (await running.complete("hi")).status_code == 200


async def test_json_of_a_large_body_is_parsed_too(fast: Inside) -> None:
    body = json.dumps({"prompt": "x" * 100_000})
    refused = await fast.client.post("/v1/completions", content=body)
    assert error(refused)["code"] == "context_length_exceeded"
