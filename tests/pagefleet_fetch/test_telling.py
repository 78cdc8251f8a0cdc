"""How far a download is, for whoever asks its port."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pagefleet_api.download import PATH, DownloadProgress
from pagefleet_fetch.download import Patience
from pagefleet_fetch.fetching import Request, fetch
from pagefleet_fetch.progress import Meter, fields
from pagefleet_fetch.telling import Address, Board, telling
from tests.pagefleet_fetch.servers import Fault, Served, serving
from tests.ports import free_port

BODY = b"GGUF" * 1000


def ask(port: int, path: str = PATH) -> DownloadProgress | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return DownloadProgress.model_validate_json(answer.read())
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return None


def until(found: Callable[[], bool]) -> None:
    for _ in range(1000):
        if found():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not within 10 s")


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_download_tells_the_bytes_that_came(tmp_path: Path, host: str) -> None:
    gate, port, board = threading.Event(), free_port(), Board()
    faults = {"small.gguf": [Fault(cut_after=1000), Fault(wait=gate)]}
    with serving(Served({"small.gguf": BODY}, faults=faults)) as served, telling(board, Address(host, port)):
        assert ask(port) is None, "nothing is known before the listing"
        request = Request(
            uri=f"{served.address}/small.gguf", into=tmp_path / "m", patience=Patience(2, 0.001), board=board
        )
        running = threading.Thread(target=fetch, args=(request,))
        running.start()
        until(lambda: (told := ask(port)) is not None and told.bytes == 1000)
        assert ask(port) == DownloadProgress(bytes=1000, total_bytes=4000)
        assert ask(port, "/etc/passwd") is None
        gate.set()
        running.join(10)
    assert not running.is_alive()


def test_a_port_that_is_taken_stops_no_download(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(Served({})) as served, telling(Board(), Address("127.0.0.1", int(served.address.rpartition(":")[2]))):
        pass
    assert "progress_not_told" in caplog.text


@pytest.mark.parametrize(("text", "address"), [(":8001", ("", 8001)), ("[::1]:80", ("::1", 80)), ("a:1", ("a", 1))])
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["8001", "a:", ":70000", "a:b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write :8001"):
        Address.parse(text)


def test_the_rate_is_of_the_time_since_the_last_measurement() -> None:
    now_s = 0.0
    meter = Meter(1000, 100, lambda: now_s)
    assert meter.progress() == DownloadProgress(bytes=100, total_bytes=1000)
    meter.add(200)
    now_s = 10.0
    assert fields(meter.measure()) == {"bytes": 300, "total_bytes": 1000, "bytes_per_s": 20, "eta_s": 35}
    meter.add(-250)
    now_s = 20.0
    assert fields(meter.measure()) == {"bytes": 50, "total_bytes": 1000, "bytes_per_s": 0, "eta_s": None}


def test_without_the_size_of_every_file_nobody_is_told_how_much_is_left() -> None:
    meter = Meter(None, 100)
    meter.add(200)
    progress = meter.measure()
    assert (progress.bytes, progress.total_bytes, progress.seconds_left) == (300, None, None)
