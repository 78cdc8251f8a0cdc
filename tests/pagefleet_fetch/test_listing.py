"""Which files of a repository an engine needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_fetch.errors import Corrupt, Unusable
from pagefleet_fetch.listing import RemoteFile, facts, needed
from pagefleet_fetch.verifying import Digests


def chosen(*paths: str) -> list[str]:
    return [file.path for file in needed([RemoteFile(path) for path in paths], "hf://org/name")]


@pytest.mark.parametrize(
    ("published", "wanted"),
    [
        (["model.safetensors", "pytorch_model.bin", "config.json"], ["config.json", "model.safetensors"]),
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors", "params.json"]),
        (["model.safetensors", "model-q4.gguf"], ["model.safetensors"]),
        (["model-q4.gguf", "README.md"], ["model-q4.gguf"]),
        (["pytorch_model.bin", "pytorch_model.bin.index.json"], ["pytorch_model.bin", "pytorch_model.bin.index.json"]),
        (["model.safetensors", "pytorch_model.bin.index.json"], ["model.safetensors"]),
        (
            ["model.safetensors", "tokenizer.model", "chat_template.jinja"],
            ["chat_template.jinja", "model.safetensors", "tokenizer.model"],
        ),
        (["model.safetensors", "onnx/model.onnx", "onnx/config.json", ".cache/x.json"], ["model.safetensors"]),
        (["model.safetensors", "1_Pooling/config.json"], ["1_Pooling/config.json", "model.safetensors"]),
        (["pytorch_model.bin", "model.safetensors.index.json"], ["pytorch_model.bin"]),
    ],
)
def test_weights_come_in_one_format(published: list[str], wanted: list[str]) -> None:
    assert chosen(*published) == wanted


def test_several_gguf_files_are_the_users_choice() -> None:
    with pytest.raises(Unusable, match=r"2 \.gguf files \(a\.gguf, b\.gguf\); put the name of one at the URI's end"):
        chosen("a.gguf", "b.gguf")


def test_a_repository_without_weights_is_no_model() -> None:
    with pytest.raises(Unusable, match="has no weights"):
        chosen("config.json")


@given(st.lists(st.sampled_from(["a", "..", ".", "", "b.safetensors"]), min_size=1, max_size=4))
def test_no_path_leaves_the_folder(parts: list[str]) -> None:
    path = "/".join(parts)
    try:
        wanted = chosen("model.safetensors", path)
    except Unusable:
        return
    assert not any(".." in name.split("/") or name.startswith("/") for name in wanted)


def test_facts_that_are_too_large_to_be_any_are_refused() -> None:
    (found,) = facts([RemoteFile("config.json")], "hf://org/name")
    with pytest.raises(Corrupt, match="more bytes arrive than the 8388608 that such a file ever has"):
        Digests(found).check_room(found.path, bytes((8 << 20) + 1))
    large = [RemoteFile("config.json", 1000), RemoteFile("model.safetensors.index.json", 1 << 30)]
    assert facts(large[:1], "hf://org/name") == tuple(large[:1])
    with pytest.raises(Unusable, match=r"hf://org/name: config\.json, .* never have so many"):
        facts(large, "hf://org/name")
