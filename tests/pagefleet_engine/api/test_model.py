"""Prompts to tokens, and what is refused before the slow part of it."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from pagefleet_engine.api.errors import ContextTooLong, InvalidRequest
from pagefleet_engine.api.model import ServedModel
from pagefleet_engine.api.templates import ChatTemplate
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tokenizer import ChatSettings, ModelTokenizer
from pagefleet_engine.scheduler.admission import Capacity
from tests.pagefleet_engine.tiny_model import write_tiny_model

CAPACITY = Capacity(max_model_len=10, num_blocks=64, vocab_size=300)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """The tiny model; its longest token is the markup `<|im_start|>`, 12 bytes."""
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return ServedModel.load(resolve(f"file://{folder}"), None)


def unmindful(template: str = "{{ messages[0].content }}") -> ServedModel:
    """A model whose tokenizer drops everything that it does not know, and all white space around it."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    chat = ChatSettings(template=None, bos_token=None, eos_token=None)
    return ServedModel(ModelTokenizer(tokenizer, chat=chat, bos_id=None, eos_ids=()), ChatTemplate(template), 1)


def test_text_over_all_bytes_of_a_window_is_refused_without_tokenising_it(
    tiny: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = tiny.longest_token_bytes
    assert longest == len("<|im_start|>")
    assert len(tiny.prompt_tokens("x" * (10 * longest), CAPACITY)) == 10 * longest

    def encode(*_: object, **__: object) -> list[int]:
        raise AssertionError("the slow part")

    monkeypatch.setattr(ModelTokenizer, "encode", encode)
    with pytest.raises(ContextTooLong, match=r"121 characters.*10 tokens.*120 bytes") as refused:
        tiny.prompt_tokens("x" * (10 * longest + 1), CAPACITY)
    assert refused.value.param == "prompt"
    with pytest.raises(ContextTooLong) as refused:
        tiny.chat_tokens([{"role": "user", "content": "x" * 121}], CAPACITY)
    assert refused.value.param == "messages"


@pytest.mark.parametrize("text", [" ", "\n\n", "世"])
def test_text_without_a_token_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(InvalidRequest, match="has no token") as refused:
        unmindful().prompt_tokens(text, CAPACITY)
    assert (refused.value.param, json.dumps(text, ensure_ascii=False) in refused.value.message) == ("prompt", True)
    with pytest.raises(InvalidRequest, match="has no token") as refused:
        unmindful().chat_tokens([{"role": "user", "content": text}], CAPACITY)
    assert refused.value.param == "messages"


def test_text_with_tokens_and_no_text_at_all_pass() -> None:
    assert unmindful().prompt_tokens(" ab ", CAPACITY) == (0, 1)
    assert unmindful().prompt_tokens("", CAPACITY) == ()


@pytest.mark.parametrize("token_id", [2, 10**4000])
def test_a_token_id_that_the_model_does_not_have_is_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequest, match="0 to 1") as refused:
        unmindful().prompt_tokens((0, token_id), CAPACITY)
    assert len(refused.value.message) < 300
    assert unmindful().prompt_tokens((0, 1), CAPACITY) == (0, 1)
