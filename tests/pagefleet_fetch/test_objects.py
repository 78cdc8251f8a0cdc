"""Models of an S3-compatible server on the loopback address."""

import json
import logging
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from pagefleet_api import model_uri
from pagefleet_fetch.download import Patience
from pagefleet_fetch.errors import Denied, FetchError, Missing, Unavailable
from pagefleet_fetch.fetching import Request, fetch, source_of
from pagefleet_fetch.folder import Folder
from pagefleet_operator.models.access import Access
from pagefleet_operator.models.model_files import ModelKey, read_files
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_fetch.models import MODEL, REPOSITORY, SHARDS, contents

SHARD = next(iter(SHARDS))
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    address = f"http://{host}:{port}"
    make_bucket(address)
    for name, content in REPOSITORY.items():
        bucket(address, "team/name").put(name, content)
    bucket(address, "team").put("small.gguf", b"GGUF")
    yield address
    running.stop()


def make_bucket(address: str) -> None:
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20261130/us-east-1/s3/aws4_request"}
    urllib.request.urlopen(urllib.request.Request(f"{address}/models", method="PUT", headers=headers)).close()


def bucket(address: str, prefix: str) -> S3Store:
    return S3Store(
        "models",
        prefix=prefix or None,
        endpoint=address,
        access_key_id="testing",
        secret_access_key="testing",
        region="us-east-1",
        client_options={"allow_http": True},
    )


@pytest.fixture
def environment(server: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {**CREDENTIALS, "AWS_ENDPOINT_URL": server}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def request(into: Path, environment: dict[str, str], uri: str = "s3://models/team/name") -> Request:
    return Request(uri=uri, into=into, environment=environment, patience=Patience(2, 0.001))


def test_a_prefix_is_a_model_and_its_etags_are_on_record(environment: dict[str, str], tmp_path: Path) -> None:
    record = fetch(request(tmp_path / "name", environment))
    assert contents(tmp_path / "name") == MODEL
    assert all(file.etag for file in record.files)


def test_one_object_may_be_the_model(environment: dict[str, str], tmp_path: Path) -> None:
    fetch(request(tmp_path / "small", environment, "s3://models/team/small.gguf"))
    assert contents(tmp_path / "small") == {"small.gguf": b"GGUF"}


def test_an_object_that_came_half_is_gone_on_with(
    environment: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request(tmp_path / "name", environment)
    folder = Folder(asked.into)
    shard = next(file for file in source_of(asked).listing().files if file.path == SHARD)
    folder.prepare((shard,))
    folder.part(shard).write_bytes(SHARDS[SHARD][:100_000])
    with caplog.at_level(logging.INFO, logger="pagefleet_fetch"):
        fetch(asked)
    assert contents(asked.into) == MODEL
    (started,) = [line for line in caplog.records if line.getMessage() == "fetch_started"]
    assert vars(started)["bytes"] == sum(map(len, MODEL.values())) - 100_000


def test_an_object_that_changed_after_the_listing_is_not_mixed(environment: dict[str, str], tmp_path: Path) -> None:
    bucket(environment["AWS_ENDPOINT_URL"], "changing").put("a.gguf", b"first")
    source = source_of(request(tmp_path / "a", environment, "s3://models/changing/a.gguf"))
    (listed,) = source.listing().files
    bucket(environment["AWS_ENDPOINT_URL"], "changing").put("a.gguf", b"other")
    with pytest.raises(Unavailable, match="changed while it was being fetched"), source.read(listed, 0) as stream:
        list(stream.chunks)


def test_an_empty_prefix_is_said_to_be_missing(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"s3://models/nobody holds no object"):
        fetch(request(tmp_path / "name", environment, "s3://models/nobody"))


def test_a_bucket_that_there_is_not_is_said_to_be_missing_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"s3://none/name: .*check bucket and prefix"):
        fetch(request(tmp_path / "name", environment, "s3://none/name"))


def test_a_wrong_key_is_denied_with_the_names_of_the_keys(environment: dict[str, str], tmp_path: Path) -> None:
    address = environment["AWS_ENDPOINT_URL"]

    def need_keys(after: bytes) -> None:
        post = urllib.request.Request(
            f"{address}/moto-api/reset-auth", data=after, headers={"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(post).close()

    need_keys(b"0")
    try:
        with pytest.raises(Denied, match=r"s3://models/team/name: access denied .*AWS_ACCESS_KEY_ID.*secretRef names"):
            fetch(request(tmp_path / "name", environment))
    finally:
        need_keys(b"inf")


def test_what_tells_the_size_is_asked_for_by_name_as_a_prefix_may_have_millions_of_objects(
    environment: dict[str, str], tmp_path: Path
) -> None:
    source = source_of(replace(request(tmp_path / "name", environment), only_facts=True))
    assert [file.path for file in source.listing().files] == ["config.json", "model.safetensors.index.json"]
    nothing = replace(request(tmp_path / "name", environment, "s3://models/nobody"), only_facts=True)
    with pytest.raises(Missing, match=r"s3://models/nobody holds no object"):
        source_of(nothing).listing()


async def test_the_operator_opens_a_bucket_with_the_keys_of_a_secret_and_with_no_identity_of_its_own(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket(server, "sized").put("config.json", json.dumps(configs.LLAMA_8B).encode())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/operator")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/none")
    secret = {**CREDENTIALS, "AWS_ENDPOINT_URL": server}
    model = model_uri.parse("s3://models/sized")
    facts = await read_files(ModelKey(str(model)), Access(frozenset({server})).environment(model, secret))
    assert facts.stored(2).total_bytes == 16_060_522_496


@pytest.mark.parametrize(
    ("uri", "more", "words"),
    [
        ("s3://models/a", {"AWS_ENDPOINT_URL": "nonsense"}, "AWS_ENDPOINT_URL is 'nonsense', which is no address"),
        ("az://models/a", {}, "put AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_what_the_store_cannot_be_opened_with_is_named(
    environment: dict[str, str], tmp_path: Path, uri: str, more: dict[str, str], words: str
) -> None:
    with pytest.raises(FetchError, match=words):
        fetch(request(tmp_path / "name", {**environment, **more}, uri))
