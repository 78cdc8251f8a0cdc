"""Models of a plain web server and of a folder."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from pagefleet_fetch.download import Patience
from pagefleet_fetch.errors import Corrupt, Denied, Missing, Unavailable, Unusable
from pagefleet_fetch.fetching import Request, fetch
from pagefleet_fetch.listing import FACTS
from pagefleet_fetch.web import refusal
from tests.pagefleet_fetch.models import MODEL, REPOSITORY, contents, safetensors
from tests.pagefleet_fetch.servers import Fault, Served, serving

QUICK = Patience(2, 0.001)


def test_a_folder_is_found_by_the_usual_names_and_the_index(tmp_path: Path) -> None:
    with serving(Served({f"a/name/{name}": content for name, content in REPOSITORY.items()})) as served:
        fetch(Request(uri=f"{served.address}/a/name/", into=tmp_path / "name", patience=QUICK))
    assert contents(tmp_path / "name") == MODEL


def test_one_weights_file_needs_no_index(tmp_path: Path) -> None:
    whole = {"config.json": b"{}", "model.safetensors": safetensors(10)}
    with serving(Served(whole)) as served:
        fetch(Request(uri=f"{served.address}/", into=tmp_path / "name", patience=QUICK))
    assert contents(tmp_path / "name") == whole


def test_an_adapters_folder_has_no_config_of_a_model(tmp_path: Path) -> None:
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": safetensors(10)}
    with serving(Served({f"sql/{name}": content for name, content in adapter.items()})) as served:
        fetch(Request(uri=f"{served.address}/sql/", into=tmp_path / "sql", patience=QUICK))
        fetch(Request(uri=f"{served.address}/sql/", into=tmp_path / "facts", only_facts=True, patience=QUICK))
    assert contents(tmp_path / "sql") == adapter
    assert contents(tmp_path / "facts").keys() == {"adapter_config.json"}


def test_what_tells_the_size_alone_is_asked_for_where_no_more_is_wanted(tmp_path: Path) -> None:
    with serving(Served(dict(REPOSITORY))) as served:
        fetch(Request(uri=f"{served.address}/", into=tmp_path / "name", only_facts=True, patience=QUICK))
        asked = {path.removeprefix("/") for _, path, _ in served.asked}
    assert asked == FACTS
    assert contents(tmp_path / "name").keys() == {"config.json", "model.safetensors.index.json"}


def test_whoever_may_ask_one_address_follows_no_redirect_to_another(tmp_path: Path) -> None:
    faults = {"config.json": [Fault(status=302, headers={"Location": "http://127.0.0.1:1/x?signature=s"})]}
    with serving(Served({**MODEL, "copy": MODEL["config.json"]}, faults=faults)) as served:
        request = Request(
            uri=f"{served.address}/", into=tmp_path / "name", only_facts=True, same_origin=True, patience=Patience(1, 0)
        )
        with pytest.raises(Denied, match=r"config\.json leads to http://127\.0\.0\.1:1, and no other address"):
            fetch(request)
        faults["config.json"] = [Fault(status=302, headers={"Location": f"{served.address}/copy"})]
        fetch(request)
    assert contents(tmp_path / "name")["config.json"] == MODEL["config.json"]


def test_a_header_that_makes_no_sense_is_asked_for_anew_where_no_checksum_tells_who_broke_it(tmp_path: Path) -> None:
    whole = {"config.json": b"{}", "model.safetensors": safetensors(10)}
    with serving(Served(whole, faults={"model.safetensors": [Fault(flip_first_byte=True)]})) as served:
        request = Request(uri=f"{served.address}/", into=tmp_path / "name", patience=QUICK)
        with pytest.raises(Unusable, match=r"model\.safetensors"):
            fetch(request)
        fetch(request)
        assert served.offsets("model.safetensors") == [0, 0]
    assert contents(tmp_path / "name") == whole


def test_a_file_is_resumed_by_its_etag(tmp_path: Path) -> None:
    with serving(Served({"small.gguf": b"GGUF" * 1000}, faults={"small.gguf": [Fault(cut_after=1000)]})) as served:
        fetch(Request(uri=f"{served.address}/small.gguf?download=true", into=tmp_path / "small", patience=QUICK))
        assert served.offsets("small.gguf") == [0, 1000]
    assert contents(tmp_path / "small") == {"small.gguf": b"GGUF" * 1000}


def test_what_is_no_model_is_said_so(tmp_path: Path) -> None:
    with serving(Served({"config.json": b"{}"})) as served:
        with pytest.raises(Missing, match=r"/nothing has no config\.json"):
            fetch(Request(uri=f"{served.address}/nothing", into=tmp_path / "a", patience=QUICK))
        with pytest.raises(Unusable, match="has no weights"):
            fetch(Request(uri=f"{served.address}/", into=tmp_path / "b", patience=QUICK))


def test_nobody_at_the_address_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9/.* cannot be reached: .*refused"):
        fetch(Request(uri="http://127.0.0.1:9/small.gguf", into=tmp_path / "a", patience=QUICK))


def test_a_folder_of_the_machine_is_copied(tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    for name, content in {"config.json": b"{}", "model.safetensors": safetensors(10)}.items():
        (published / name).write_bytes(content)
    fetch(Request(uri=f"file://{published}", into=tmp_path / "copy"))
    assert contents(tmp_path / "copy") == contents(published)
    with pytest.raises(Missing, match="there is no such file or folder"):
        fetch(Request(uri=f"file://{published}/no", into=tmp_path / "other"))


def test_what_is_mounted_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="is not downloaded: pvc://"):
        fetch(Request(uri="pvc://claim/path", into=tmp_path / "a"))


def test_bytes_beyond_the_published_size_are_not_kept(tmp_path: Path) -> None:
    faults = {"small.gguf": [Fault(longer_by=5_000_000)] * 2}
    with (
        serving(Served({"small.gguf": b"GGUF" * 1000}, faults=faults)) as served,
        pytest.raises(Corrupt, match="more bytes arrive than the 4000 that are published"),
    ):
        fetch(Request(uri=f"{served.address}/small.gguf", into=tmp_path / "name", patience=QUICK))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == 0


@pytest.mark.parametrize("odd", [Fault(status=416), Fault(status=206)], ids=["no such range", "a part without a place"])
def test_a_part_that_cannot_be_gone_on_with_begins_again(tmp_path: Path, odd: Fault) -> None:
    faults = {"small.gguf": [Fault(cut_after=1000), odd]}
    with serving(Served({"small.gguf": b"GGUF" * 1000}, faults=faults)) as served:
        fetch(Request(uri=f"{served.address}/small.gguf", into=tmp_path / "name", patience=Patience(3, 0.001)))
        assert served.offsets("small.gguf") == [0, 1000, 0]
    assert contents(tmp_path / "name") == {"small.gguf": b"GGUF" * 1000}


@pytest.mark.parametrize("address", ["ftp://127.0.0.1:1/x", "file:///etc/passwd"])
def test_redirects_lead_to_web_servers_alone(tmp_path: Path, address: str) -> None:
    faults = {"small.gguf": [Fault(status=302, headers={"Location": address})]}
    with serving(Served({"small.gguf": b"GGUF"}, faults=faults)) as served, pytest.raises(Missing, match="HTTP 302"):
        fetch(Request(uri=f"{served.address}/small.gguf", into=tmp_path / "name", patience=QUICK))


@pytest.mark.parametrize(
    ("said", "after_s"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("9" * 400, 86400.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86400.0),
        (None, None),
        ("", None),
        ("-1", None),
        ("²", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_what_a_busy_server_asks_for_is_read_as_seconds_or_as_a_date(said: str | None, after_s: float | None) -> None:
    busy = refusal(503, "http://a", "", {} if said is None else {"Retry-After": said})
    assert isinstance(busy, Unavailable)
    assert busy.after_s == after_s


def test_a_date_ahead_is_as_many_seconds_away() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    busy = refusal(429, "http://a", "", {"Retry-After": date})
    assert isinstance(busy, Unavailable) and busy.after_s is not None
    assert 40 < busy.after_s <= 100


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"RateLimit": '"api"; r=0; t=7', "Retry-After": "3"}, 3.0),
        ({"RateLimit": '"api";r=0'}, None),
    ],
)
def test_the_hubs_own_words_for_when_its_limit_begins_anew_count_too(
    headers: dict[str, str], after_s: float | None
) -> None:
    busy = refusal(429, "http://a", "", headers)
    assert isinstance(busy, Unavailable)
    assert busy.after_s == after_s
