"""Models of Google Cloud Storage and Azure Blob Storage, from servers that speak their protocols."""

import base64
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagefleet_api import model_uri
from pagefleet_fetch.download import Patience
from pagefleet_fetch.errors import EXIT_STATUS, Denied, Missing, Unavailable
from pagefleet_fetch.fetching import Request, fetch, source_of
from pagefleet_fetch.folder import Folder
from pagefleet_operator.models.access import Access
from pagefleet_operator.models.model_files import ModelKey, read_files
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_fetch.models import MODEL, REPOSITORY, SHARDS, contents, safetensors
from tests.pagefleet_fetch.stores.servers import CONTAINER, Azure, Store, azure, google

SHARD = next(iter(SHARDS))
PATIENCE = Patience(2, 0.001)
LARGE = safetensors(40 << 20)
"""More than two of the pieces in which an object is read."""


@pytest.fixture(scope="module", params=[google, azure], ids=["gs", "az"])
def server(request: pytest.FixtureRequest) -> Iterator[Store]:
    with request.param() as store:
        for name, content in REPOSITORY.items():
            store.put(f"team/name/{name}", content)
        store.put("team/small.gguf", b"GGUF")
        yield store


@pytest.fixture
def store(server: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def request(store: Store, into: Path, path: str = "team/name") -> Request:
    uri = f"{store.scheme}://{CONTAINER}/{path}"
    return Request(uri=uri, into=into, environment=store.environment, patience=PATIENCE)


def test_a_prefix_is_a_model_and_its_etags_are_on_record(store: Store, tmp_path: Path) -> None:
    record = fetch(request(store, tmp_path / "name"))
    assert contents(tmp_path / "name") == MODEL
    assert all(file.etag for file in record.files)


def test_one_object_may_be_the_model(store: Store, tmp_path: Path) -> None:
    fetch(request(store, tmp_path / "small", "team/small.gguf"))
    assert contents(tmp_path / "small") == {"small.gguf": b"GGUF"}


def test_an_object_of_many_pieces_that_came_half_is_gone_on_with(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.put("large/config.json", b"{}")
    store.put("large/model.safetensors", LARGE)
    asked = request(store, tmp_path / "large", "large")
    folder = Folder(asked.into)
    shard = next(file for file in source_of(asked).listing().files if file.path == "model.safetensors")
    folder.prepare((shard,))
    folder.part(shard).write_bytes(LARGE[: 5 << 20])
    with caplog.at_level(logging.INFO, logger="pagefleet_fetch"):
        fetch(asked)
    assert contents(asked.into) == {"config.json": b"{}", "model.safetensors": LARGE}
    (started,) = [line for line in caplog.records if line.getMessage() == "fetch_started"]
    assert vars(started)["bytes"] == len(b"{}") + len(LARGE) - (5 << 20)


async def test_the_operator_reads_a_model_s_size_with_what_it_takes_of_a_secret(store: Store) -> None:
    store.put("sized/config.json", json.dumps(configs.LLAMA_8B).encode())
    model = model_uri.parse(f"{store.scheme}://{CONTAINER}/sized")
    endpoint = next(value for value in store.environment.values() if value.startswith("http://"))
    given = Access(frozenset({str(model_uri.origin(endpoint))})).environment(model, store.environment)
    assert (await read_files(ModelKey(str(model)), given)).stored(2).total_bytes == 16_060_522_496


def test_an_object_that_changed_after_the_listing_is_not_mixed(store: Store, tmp_path: Path) -> None:
    if not isinstance(store, Azure):
        pytest.skip("fake-gcs-server takes If-Match for nothing")
    store.put("changing/a.gguf", b"first")
    source = source_of(request(store, tmp_path / "a", "changing/a.gguf"))
    (listed,) = source.listing().files
    store.put("changing/a.gguf", b"other")
    with pytest.raises(Unavailable, match="changed while it was being fetched"), source.read(listed, 0) as stream:
        list(stream.chunks)


@pytest.mark.parametrize("path", ["nobody", "nobody/a.gguf"])
def test_what_is_not_there_is_said_to_be_missing(store: Store, tmp_path: Path, path: str) -> None:
    with pytest.raises(Missing, match=rf"{store.scheme}://models/{path}.*check bucket and prefix"):
        fetch(request(store, tmp_path / "name", path))


def test_a_bucket_that_there_is_not_is_said_to_be_missing(store: Store, tmp_path: Path) -> None:
    if not isinstance(store, Azure):
        pytest.skip("fake-gcs-server answers 500")
    asked = Request(
        uri=f"{store.scheme}://none/name", into=tmp_path / "m", environment=store.environment, patience=PATIENCE
    )
    with pytest.raises(Missing, match="check bucket and prefix"):
        fetch(asked)


def test_the_program_takes_the_credentials_of_its_environment(store: Store, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pagefleet_fetch", f"{store.scheme}://{CONTAINER}/team/name"]
    done = subprocess.run([*command, f"--into={tmp_path / 'm'}"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["bytes"] == sum(map(len, MODEL.values()))
    assert contents(tmp_path / "m") == MODEL


def test_a_wrong_key_is_denied_with_the_names_of_the_keys(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(store, Azure):
        pytest.skip("fake-gcs-server asks nobody who they are")
    wrong = base64.b64encode(b"wrong").decode()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    with pytest.raises(Denied, match=r"az://models/team/name: access denied .*AZURE_STORAGE_ACCOUNT_KEY") as denied:
        fetch(request(store, tmp_path / "name"))
    assert wrong not in str(denied.value)
    assert EXIT_STATUS[type(denied.value)] == 3
