"""What clients and probes see when the engine breaks."""

import asyncio
import shutil
from pathlib import Path

import openai
import pytest

from pagefleet_engine import logs
from pagefleet_engine.api import health
from pagefleet_engine.api.answers import Usage
from pagefleet_engine.api.choice import Delta
from pagefleet_engine.api.completions import CompletionDialect
from tests.pagefleet_engine.server.inside import engine, sse, stream_text, until

pytestmark = pytest.mark.asyncio


async def test_a_failure_in_a_stream_is_one_error_event_after_what_was_made_and_then_the_end(tiny: Path) -> None:
    async with engine(tiny, fail_at=5) as running:
        response = await running.complete("abcdefgh", max_tokens=8, stream=True)
        *events, last = sse(response.text)
        assert stream_text(events) == "abcde"
        assert last["error"]["code"] == "engine_error"
        assert "injected fault" in last["error"]["message"]
        assert (await running.requests_total())["error"] == 1
        assert (await running.complete("abc", max_tokens=3)).status_code == 200


async def test_a_failure_before_the_first_token_is_a_status_and_not_a_stream(tiny: Path) -> None:
    async with engine(tiny, fail_at=0) as running:
        for streamed in (True, False):
            response = await running.complete("abc", stream=streamed, n=2)
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "engine_error"
        assert await running.requests_total() == {"error": 4, "stop": 0, "length": 0, "abort": 0}


async def test_the_openai_library_raises_on_a_failure_in_a_stream(tiny: Path) -> None:
    async with engine(tiny, fail_at=2) as running:
        client = openai.AsyncOpenAI(base_url=f"{running.client.base_url}/v1", api_key="x", max_retries=0)
        streaming = await client.completions.create(model="tiny", prompt="abcd", stream=True)
        with pytest.raises(openai.APIError, match="injected fault"):
            async for _ in streaming:
                pass


async def test_a_fault_of_the_server_in_a_stream_is_an_error_and_not_an_abort(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chunk(*_: object) -> bytes:
        raise RuntimeError("a bug")

    async with engine(tiny, step_s=0.02) as running:
        monkeypatch.setattr(CompletionDialect, "chunk", chunk)
        response = await running.complete("ab", max_tokens=400, ignore_eos=True, stream=True)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")
        assert await running.requests_total() == {"error": 1, "stop": 0, "length": 0, "abort": 0}
        await until(running.idle)


async def test_a_fault_of_the_server_under_way_ends_the_stream_with_an_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = CompletionDialect.chunk

    def failing(dialect: CompletionDialect, index: int, delta: Delta, usage: Usage | None) -> bytes:
        if delta.text == "c":
            raise RuntimeError("a bug")
        return chunk(dialect, index, delta, usage)

    async with engine(tiny, step_s=0.02) as running:
        monkeypatch.setattr(CompletionDialect, "chunk", failing)
        *told, last = sse((await running.complete("abc", max_tokens=400, stream=True)).text)
        assert stream_text(told) == "ab"
        assert last["error"]["code"] == "engine_error"
        assert await running.requests_total() == {"error": 1, "stop": 0, "length": 0, "abort": 0}
        await until(running.idle)


async def test_losing_the_core_tells_open_answers_fails_health_and_ends_the_process_with_an_error(tiny: Path) -> None:
    async with engine(tiny, step_s=0.02) as running:
        streamed = asyncio.create_task(running.complete("abc", max_tokens=400, stream=True))
        whole = asyncio.create_task(running.complete("abc", max_tokens=400))
        await until(lambda: running.server.host.recorder.inter_token.count > 3)
        running.server.host.core.fail("the core process has ended")
        assert running.server.host.ailment() == "the core process has ended"
        assert sse((await streamed).text)[-1]["error"]["code"] == "engine_failed"
        answer = await whole
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")
        assert await running.running == 1


async def test_a_core_that_cannot_start_ends_the_process_with_its_reason_which_the_kubelet_finds(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelets = tmp_path / "termination-log"
    kubelets.touch()
    monkeypatch.setattr(logs, "TERMINATION_LOG", kubelets)
    async with engine(tiny, ready=False, refuse="no room for\nthe KV cache") as running:
        assert await running.running == 1
        assert running.server.host.core.failure == "no room for\nthe KV cache"
    assert kubelets.read_text() == "no room for the KV cache"


@pytest.mark.parametrize(
    ("text", "says"), [(None, "cannot be read: No such file"), ("{% if %}", "cannot be compiled"), ("\xff", "utf-8")]
)
async def test_a_template_that_cannot_be_used_ends_the_process_naming_the_flag(
    tiny: Path, tmp_path: Path, text: str | None, says: str
) -> None:
    path = tmp_path / "t.jinja"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    async with engine(tiny, "--chat-template", str(path), ready=False) as running:
        assert await running.running == 1
        said = running.server.host.core.failure
        assert said is not None
        assert said.startswith(f"--chat-template {path}: ")
        assert says in said
        assert "leave the flag out" in said


async def test_a_models_broken_template_and_a_file_that_is_no_gguf_are_not_called_tokenizers(
    tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model at all")
    async with engine(path, ready=False) as running:
        assert await running.running == 1
        said = running.server.host.core.failure
        assert said is not None
        assert said.startswith(f"{path} is not a GGUF file")
        assert "give a whole .gguf file" in said
    folder = shutil.copytree(tiny, tmp_path / "broken")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{% if %}"}')
    async with engine(folder, ready=False) as running:
        assert await running.running == 1
        assert "give another one with --chat-template" in str(running.server.host.core.failure)


async def test_while_the_core_is_stuck_probes_and_load_give_the_same_reason(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(tiny, step_s=1.0) as running:
        assert "reason" not in await running.load()
        monkeypatch.setattr(health, "STEP_BOUND_S", 0.1)
        asked = asyncio.create_task(running.complete("abc", max_tokens=1))
        await until(lambda: running.server.host.ailment() is not None)
        answers = [(await running.admin.get(path)) for path in ("/healthz", "/readyz", "/load")]
        assert [answer.status_code for answer in answers] == [503, 503, 200]
        for answer in answers:
            assert answer.json()["reason"].endswith("while requests are open")
        assert (await asked).status_code == 200
        assert (await running.admin.get("/readyz")).json() == {"ready": True}
