"""Models of the hub, over its real protocol on the loopback address."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagefleet_fetch import collecting
from pagefleet_fetch.collecting import Limit
from pagefleet_fetch.download import Patience
from pagefleet_fetch.errors import Corrupt, Denied, FetchError, Missing, NoSpace, Occupied, Unavailable, Unusable
from pagefleet_fetch.fetching import Request, fetch, source_of
from pagefleet_fetch.folder import RECORD, Folder, Record
from tests.pagefleet_fetch.models import MODEL, REPOSITORY, SHARDS, contents, safetensors
from tests.pagefleet_fetch.servers import COMMIT, Fault, Served, hub

SHARD = next(iter(SHARDS))
QUICK = Patience(attempts=3, first_delay_s=0.001)


class Rig:
    """A hub and requests to it."""

    def __init__(self, front: Served, store: Served, folder: Path) -> None:
        self.front, self.store, self.into = front, store, folder / "models" / "name"

    def request(self, **more: object) -> Request:
        fields: dict[str, object] = {
            "uri": "hf://org/name",
            "into": self.into,
            "patience": QUICK,
            "environment": {"HF_ENDPOINT": self.front.address},
        }
        return Request(**{**fields, **more})  # type: ignore[arg-type]

    def left(self) -> list[str]:
        return sorted(path.name for path in self.into.parent.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with hub(REPOSITORY) as (front, store):
        yield Rig(front, store, tmp_path)


def test_what_an_engine_needs_arrives_with_a_record_of_commit_sizes_and_digests(rig: Rig) -> None:
    record = fetch(rig.request())
    assert contents(rig.into) == MODEL
    assert record.revision == COMMIT
    assert Record.read(rig.into) == record
    assert {file.path: file.size_bytes for file in record.files} == {name: len(data) for name, data in MODEL.items()}
    assert rig.left() == ["name"]


def test_a_model_that_is_there_is_not_asked_for_again(rig: Rig) -> None:
    first = fetch(rig.request())
    asked = len(rig.front.asked)
    assert fetch(rig.request()) == first
    assert len(rig.front.asked) == asked


def test_a_file_that_was_lost_brings_the_model_anew(rig: Rig) -> None:
    fetch(rig.request())
    (rig.into / SHARD).unlink()
    fetch(rig.request())
    assert contents(rig.into) == MODEL


def test_a_named_file_is_fetched_alone(rig: Rig) -> None:
    rig.front.files["small.gguf"] = rig.store.files["small.gguf"] = b"GGUF"
    fetch(rig.request(uri="hf://org/name/small.gguf"))
    assert contents(rig.into) == {"small.gguf": b"GGUF"}


def test_facts_alone_take_no_weights(rig: Rig) -> None:
    fetch(rig.request(only_facts=True))
    assert sorted(contents(rig.into)) == ["config.json", "model.safetensors.index.json"]
    assert rig.store.asked == []


def test_facts_of_a_model_that_is_one_file_are_not_its_weights(rig: Rig) -> None:
    rig.front.files["small.gguf"] = rig.store.files["small.gguf"] = b"GGUF"
    with pytest.raises(Unusable, match="cannot be told without it"):
        fetch(rig.request(uri="hf://org/name/small.gguf", only_facts=True))
    assert rig.store.asked == []


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(tmp_path: Path) -> None:
    with hub(REPOSITORY, token="hf_secret") as (front, store):
        rig = Rig(front, store, tmp_path)
        fetch(rig.request(environment={"HF_ENDPOINT": front.address, "HF_TOKEN": "hf_secret"}))
    assert contents(rig.into) == MODEL
    assert all("Authorization" not in headers for _, _, headers in store.asked)


@pytest.mark.parametrize(("token", "words"), [(None, "needs a token"), ("wrong", "not accepted")])
def test_a_refusal_names_the_secret_and_its_key(tmp_path: Path, token: str | None, words: str) -> None:
    with hub(REPOSITORY, token="hf_secret") as (front, store):
        environment = {"HF_ENDPOINT": front.address} | ({} if token is None else {"HF_TOKEN": token})
        with pytest.raises(Denied, match=f"hf://org/name.*HTTP 40[13].*{words}.*HF_TOKEN.*model.secretRef") as refused:
            fetch(Rig(front, store, tmp_path).request(environment=environment))
    assert "hf_secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "revision"), [("hf://org/other", None), ("hf://org/name", "v9"), ("hf://org/name/no.gguf", None)]
)
def test_what_does_not_exist_is_said_to_be_missing(rig: Rig, uri: str, revision: str | None) -> None:
    with pytest.raises(Missing, match="hf://org/"):
        fetch(rig.request(uri=uri, revision=revision))


def test_a_download_that_breaks_off_goes_on_where_it_broke(rig: Rig) -> None:
    rig.store.faults[SHARD] = [Fault(cut_after=100_000), Fault(cut_after=50_000)]
    fetch(rig.request())
    assert contents(rig.into) == MODEL
    assert rig.store.offsets(SHARD) == [0, 100_000, 150_000]


def test_a_server_without_ranges_begins_again(rig: Rig) -> None:
    rig.store.ranges = False
    rig.store.faults[SHARD] = [Fault(cut_after=100_000)]
    fetch(rig.request())
    assert contents(rig.into) == MODEL


def test_a_busy_server_is_asked_again_when_it_says(rig: Rig) -> None:
    rig.store.faults[SHARD] = [Fault(status=429, headers={"Retry-After": "0"}), Fault(status=503)]
    fetch(rig.request())
    assert contents(rig.into) == MODEL


def test_bytes_that_are_not_the_published_ones_never_become_a_model(rig: Rig) -> None:
    rig.store.faults[SHARD] = [Fault(flip_first_byte=True)]
    fetch(rig.request())
    assert contents(rig.into) == MODEL


@pytest.mark.parametrize("name", [SHARD, "config.json"])
def test_bytes_that_stay_wrong_are_given_up_with_both_digests(rig: Rig, name: str) -> None:
    faults = [Fault(flip_first_byte=True)] * 9
    rig.store.faults[name], rig.front.faults[name] = list(faults), list(faults)
    with pytest.raises(Corrupt, match=f"{name}: its (sha256|git-sha1) is [0-9a-f]+, but [0-9a-f]+ is published"):
        fetch(rig.request())
    assert not rig.into.exists()


def test_after_a_failure_only_what_is_missing_is_fetched(rig: Rig) -> None:
    rig.store.faults[SHARD] = [Fault(cut_after=100_000)] + [Fault(status=503)] * 3
    with pytest.raises(Unavailable, match="HTTP 503"):
        fetch(rig.request(parallel=1))
    assert not rig.into.exists()
    sent = rig.store.sent_bytes
    fetch(rig.request(parallel=1))
    assert contents(rig.into) == MODEL
    assert rig.store.offsets(SHARD)[-1] == 100_000
    assert rig.store.sent_bytes - sent == sum(len(data) for data in SHARDS.values()) - 100_000


def test_a_model_that_is_broken_at_its_source_is_refused(rig: Rig) -> None:
    broken = safetensors(1000)[:-1]
    rig.front.files[SHARD] = rig.store.files[SHARD] = broken
    with pytest.raises(Unusable, match=f"{SHARD} is broken at its source: it has {len(broken)} bytes"):
        fetch(rig.request())


@pytest.mark.parametrize(
    "header", [b"[" * 100_000, b'{"a": {"data_offsets": [0, "x"]}}', b'{"a": {"data_offsets": [0]}}']
)
def test_a_header_that_is_none_is_refused(rig: Rig, header: bytes) -> None:
    rig.front.files[SHARD] = rig.store.files[SHARD] = len(header).to_bytes(8, "little") + header
    with pytest.raises(Unusable, match=f"{SHARD} is no safetensors file: its header cannot be read"):
        fetch(rig.request())


@pytest.mark.parametrize("uri", ["hf://org/name", "http://127.0.0.1:1/name"])
@pytest.mark.parametrize("name", ["HF_TOKEN", "HTTP_AUTHORIZATION", "AWS_SECRET_ACCESS_KEY"])
def test_a_credential_with_a_line_break_is_named_and_never_told(rig: Rig, uri: str, name: str) -> None:
    with pytest.raises(Denied, match=f"{name} holds a line break") as caught:
        fetch(rig.request(uri=uri, environment={"HF_ENDPOINT": rig.front.address, name: "hidden\n"}))
    assert "hidden" not in str(caught.value)
    assert not rig.front.asked


@pytest.mark.parametrize("place", ["a-file/name", "a-link"])
def test_a_place_that_cannot_be_written_is_named(rig: Rig, tmp_path: Path, place: str) -> None:
    (tmp_path / "a-file").write_text("")
    (tmp_path / "a-link").symlink_to(tmp_path / "a-file" / "x")
    with pytest.raises(Unavailable, match=f"{place} cannot be written"):
        fetch(rig.request(into=tmp_path / place))


def test_an_index_that_names_a_file_which_is_not_there_is_refused(rig: Rig) -> None:
    del rig.front.files[SHARD]
    with pytest.raises(Unusable, match=f"names {SHARD}, which the source does not have"):
        fetch(rig.request())


def test_a_path_that_leaves_the_folder_is_refused(rig: Rig) -> None:
    rig.front.files["../escape.safetensors"] = b"x"
    with pytest.raises(Unusable, match=r"'\.\./escape\.safetensors'.*outside"):
        fetch(rig.request())


def test_the_disk_is_looked_at_before_the_first_byte(rig: Rig) -> None:
    with pytest.raises(NoSpace, match=r"needs 600\d\d\d more bytes and \d+ to spare, but 1000 are free"):
        fetch(rig.request(free_bytes=lambda _: 1000))
    assert rig.store.asked == []


def test_a_disk_that_fills_up_on_the_way_is_named(rig: Rig) -> None:
    shard = next(file for file in source_of(rig.request()).listing().files if file.path == SHARD)
    folder = Folder(rig.into)
    folder.prepare((shard,))
    folder.part(shard).symlink_to("/dev/full")
    with pytest.raises(NoSpace, match=r"the disk under .*/models/name is full: .*No space left.*use a larger volume"):
        fetch(rig.request())
    assert not rig.into.exists()


def test_a_folder_of_somebody_else_stays_as_it_is(rig: Rig) -> None:
    rig.into.mkdir(parents=True)
    (rig.into / "precious").write_text("data")
    with pytest.raises(Occupied, match="was not fetched by Pagefleet"):
        fetch(rig.request())
    assert contents(rig.into) == {"precious": b"data"}


def test_another_model_does_not_replace_the_one_that_is_there(rig: Rig) -> None:
    fetch(rig.request())
    with pytest.raises(Occupied, match="revision none given"):
        fetch(rig.request(revision=COMMIT))


def test_two_fetches_at_once_are_one_download(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    rig.store.faults[SHARD] = [Fault(wait=gate)]
    done: list[Record] = []
    with caplog.at_level(logging.INFO, logger="pagefleet_fetch"):
        threads = [threading.Thread(target=lambda: done.append(fetch(rig.request()))) for _ in range(2)]
        for thread in threads:
            thread.start()
        while "fetch_waits" not in caplog.text:
            threading.Event().wait(0.005)
        gate.set()
        for thread in threads:
            thread.join(10)
    assert len(done) == 2
    assert rig.store.offsets(SHARD) == [0]


def test_the_longest_unused_model_goes_when_the_limit_is_reached(rig: Rig) -> None:
    for name, age_s in (("old", 9000), ("older", 10_000), ("used", 11_000)):
        fetch(rig.request(into=rig.into.with_name(name)))
        os.utime(rig.into.with_name(name) / RECORD, (1e9 - age_s, 1e9 - age_s))
    size = sum(len(data) for data in MODEL.values())
    fetch(rig.request(limit=Limit(3 * size + 10, frozenset({"used"}))))
    assert rig.left() == ["name", "old", "used"]
    with pytest.raises(NoSpace, match=r"raise that limit: model\.cache\.limit"):
        fetch(rig.request(into=rig.into.with_name("next"), limit=Limit(size, frozenset({"used"}))))


def test_what_given_up_downloads_and_removals_left_goes_like_a_model(rig: Rig) -> None:
    models = rig.into.parent
    size = sum(len(data) for data in MODEL.values())
    for name in (".given-up.fetching", ".gone.removing", ".used.fetching", ".young.fetching"):
        (models / name / "parts").mkdir(parents=True)
        (models / name / "parts" / "x").write_bytes(bytes(size))
        if name != ".young.fetching":
            for path in (models / name / "parts" / "x", models / name / "parts", models / name):
                os.utime(path, (1e9, 1e9))
    fetch(rig.request(limit=Limit(3 * size + 20_000, frozenset({"used"}))))
    assert rig.left() == [".used.fetching", ".young.fetching", "name"]


def test_a_model_that_is_asked_for_while_room_is_made_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    old = rig.into.with_name("old")
    fetch(rig.request(into=old))
    os.utime(old / RECORD, (1e9, 1e9))
    first = collecting._is_idle

    def used_meanwhile(*looked_at: Any) -> bool:
        idle = first(*looked_at)
        fetch(rig.request(into=old))
        return idle

    monkeypatch.setattr(collecting, "_is_idle", used_meanwhile)
    with pytest.raises(NoSpace):
        fetch(rig.request(limit=Limit(sum(len(data) for data in MODEL.values()))))
    assert rig.left() == [".name.fetching", "old"]


def test_a_killed_process_leaves_no_model_and_the_next_one_goes_on(rig: Rig) -> None:
    gate = threading.Event()
    rig.store.faults[SHARD] = [Fault(cut_after=100_000), Fault(wait=gate)]
    command = [
        sys.executable,
        "-m",
        "pagefleet_fetch",
        "hf://org/name",
        "--into",
        str(rig.into),
        "--first-delay-s",
        "0.01",
    ]
    environment = {**os.environ, "HF_ENDPOINT": rig.front.address}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while rig.store.offsets(SHARD) != [0, 100_000]:
            assert process.poll() is None
            threading.Event().wait(0.01)
        process.send_signal(signal.SIGKILL)
    gate.set()
    assert not rig.into.exists()
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert contents(rig.into) == MODEL
    assert rig.store.offsets(SHARD)[-1] == 100_000
    assert json.loads(result.stdout.splitlines()[-1])["revision"] == COMMIT


def test_a_failure_is_one_line_and_an_exit_status(rig: Rig) -> None:
    command = [sys.executable, "-m", "pagefleet_fetch", "hf://org/other", "--into", str(rig.into)]
    environment = {**os.environ, "HF_ENDPOINT": rig.front.address}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 4
    assert len(result.stderr.splitlines()) == 1
    assert "hf://org/other" in result.stderr


def test_every_error_has_an_exit_status() -> None:
    from pagefleet_fetch.errors import EXIT_STATUS

    assert set(EXIT_STATUS) == set(FetchError.__subclasses__())
