"""A shape's folder is a model that the engine accepts, and its tokenizer has a word for each id."""

from pathlib import Path

import pytest

from bench.engine.shapes import SHAPES, write_shape
from bench.engine.texts import ids_by_text, text
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tokenizer import load_tokenizer


def test_a_shape_is_a_folder_without_weights(tmp_path: Path) -> None:
    files = resolve(f"file://{write_shape('tiny-shape', tmp_path)}", weights=False)
    tokenizer = load_tokenizer(files)
    assert tokenizer.vocab_size == SHAPES["tiny-shape"]["vocab_size"]
    assert tokenizer.eos_ids == (2047,)
    assert tokenizer.token_bytes(256 + 5) == b" w105"


def test_every_token_has_a_text_of_its_own_that_leads_back_to_it(tmp_path: Path) -> None:
    files = resolve(f"file://{write_shape('tiny-shape', tmp_path)}", weights=False)
    tokenizer, texts = load_tokenizer(files), ids_by_text(files)
    assert len(texts) == tokenizer.vocab_size
    for token_id in (0, 65, 200, 255, 256, 1999, 2046):
        assert texts[text(tokenizer.token_bytes(token_id))] == token_id


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_shape("llama-9b-shape", tmp_path)
