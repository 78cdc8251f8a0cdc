"""The core as a process: how it starts, what it says, when it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagefleet_api.launch import Launch
from pagefleet_engine.core.run import PROCESS_TITLE, batched_tokens, make_first_tokens, pace
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.wire import Abort, CoreFailed, CoreReady, FromCore, StepReport
from tests.pagefleet_engine.core.api_side import ApiSide
from tests.pagefleet_engine.core.chain_runner import VOCAB_SIZE, ChainRunner, expected_answer
from tests.pagefleet_engine.core.engine_rig import submit
from tests.pagefleet_engine.core.fake_core import POISON_TOKEN

FAKE_CORE = [sys.executable, "-m", "tests.pagefleet_engine.core.fake_core"]
Start = Callable[..., tuple[ApiSide, "subprocess.Popen[bytes]"]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []
    path = str(tmp_path / "core.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)
    listener.settimeout(20)

    def start(behaviour: str = "well", *flags: str) -> tuple[ApiSide, "subprocess.Popen[bytes]"]:
        started.append(subprocess.Popen([*FAKE_CORE, path, behaviour, *flags]))
        return ApiSide(listener.accept()[0]), started[-1]

    yield start
    listener.close()
    for process in started:
        process.kill()
        process.wait()


def until_ready(api: ApiSide) -> tuple[CoreReady, list[FromCore]]:
    before: list[FromCore] = []
    for message in api.messages():
        if isinstance(message, CoreReady):
            return message, before
        before.append(message)
    raise AssertionError("the core ended before it was ready")


def test_a_loading_core_sends_heartbeats_and_then_what_it_is(start: Start) -> None:
    api, process = start("slow", "--max-num-seqs", "3", "--num-kv-blocks", "10")
    ready, before = until_ready(api)
    assert before
    assert all(isinstance(message, StepReport) and message.status is None for message in before)
    assert (ready.max_num_seqs, ready.num_blocks, ready.block_size, ready.max_model_len) == (3, 10, 16, 512)
    assert (ready.device, ready.dtype) == ("cpu", "float32")
    assert set(ready.startup_phase_s) == {"weights", "warmup"}
    title = Path(f"/proc/{process.pid}/cmdline").read_text(encoding="utf-8")
    assert title.rstrip("\0") == PROCESS_TITLE


def test_a_core_serves_and_ends_with_its_socket_and_not_by_signals(start: Start) -> None:
    api, process = start("paced")
    until_ready(api)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    api.say(submit(1, range(9), 5), submit(2, range(9), 400))
    seat, *tokens = api.until_end_of(1)
    assert seat.cached_prompt_tokens == 0
    assert [event.token_id for event in tokens] == expected_answer(range(9), 5)
    api.say(Abort((2,)))
    assert api.until_end_of(2)[-1].finish_reason == "abort"
    assert api.status is not None
    assert (api.status.prefix_hits_total, api.status.prompt_tokens_computed_total) == (0, 18)
    api.connection.close()
    assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("device", "flags", "tokens"),
    [
        ("cuda:0", (), 8192),
        ("cpu", (), 512),
        ("cuda:0", ("--max-num-batched-tokens", "7"), 7),
        ("cpu", ("--max-num-batched-tokens", "7"), 7),
    ],
)
def test_a_gpu_gets_a_larger_step_unless_told_otherwise(device: str, flags: tuple[str, ...], tokens: int) -> None:
    assert batched_tokens(Launch.parse(["--model", "pkg://none", *flags]), device) == tokens


@pytest.mark.parametrize(
    ("device", "flags", "goal_ms"),
    [
        ("cuda:0", (), 50),
        ("paced", (), 50),
        ("cpu", (), None),
        ("cuda:0", ("20",), 20),
        ("cpu", ("20",), 20),
        ("cuda:0", ("0",), None),
    ],
)
def test_a_gpu_has_a_goal_for_the_time_between_two_tokens(
    device: str, flags: tuple[str, ...], goal_ms: int | None
) -> None:
    words = ["--model", "pkg://none", *(word for flag in flags for word in ("--itl-goal-ms", flag))]
    chosen = pace(Launch.parse(words), device)
    assert (chosen and round(chosen.itl_goal_s * 1000)) == goal_ms


def test_a_step_computes_no_more_tokens_than_the_launch_allows(start: Start) -> None:
    api, _ = start("well", "--max-num-batched-tokens", "7")
    until_ready(api)
    api.say(submit(1, range(20), 1))
    sizes = []
    for message in api.messages():
        assert isinstance(message, StepReport)
        sizes += [times.batch_tokens for times in message.times]
        if any(event.finish_reason for event in message.events):
            break
    assert sizes == [7, 7, 6]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("missing", "model file://nowhere was not found"),
        ("speechless", "KeyError"),
        ("mute", "no first token: logits are not finite"),
    ],
)
def test_a_core_that_cannot_start_says_why_and_fails(start: Start, behaviour: str, words: str) -> None:
    api, process = start(behaviour)
    last = [message for message in api.messages() if not isinstance(message, StepReport)]
    assert last == [CoreFailed(words)]
    assert process.wait(10) == 1


def test_a_mistake_of_the_user_is_logged_as_one_line_without_a_traceback(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    api, process = start("impossible")
    last = [message for message in api.messages() if not isinstance(message, StepReport)]
    assert last == [CoreFailed("--device cuda: there is no GPU")]
    assert process.wait(10) == 1
    said = capfd.readouterr().err
    assert said.count("\n") <= 1
    assert "Traceback" not in said


def test_a_core_whose_runner_breaks_says_so_and_fails(start: Start) -> None:
    api, process = start()
    until_ready(api)
    api.say(submit(1, [POISON_TOKEN], 5))
    last = [message for message in api.messages() if not isinstance(message, StepReport)]
    assert last == [CoreFailed("the GPU has gone; frozen: True")], "collections walk through what lives for ever"
    assert process.wait(10) == 1


def test_a_core_that_nobody_wants_any_more_stops_loading(start: Start) -> None:
    api, process = start("endless")
    assert isinstance(api.hear(), StepReport)
    api.connection.close()
    assert process.wait(10) == 0


def test_a_core_that_nobody_waits_for_fails_at_once(tmp_path: Path) -> None:
    finished = subprocess.run([*FAKE_CORE, str(tmp_path / "none"), "well"], check=False, timeout=30)
    assert finished.returncode == 1


def test_a_core_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    path = str(tmp_path / "core.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)
    listener.settimeout(20)
    parent_code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code, *FAKE_CORE, path, "well"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    core_pid = int(parent.stdout.readline())
    api = ApiSide(listener.accept()[0])
    until_ready(api)
    parent.kill()
    parent.communicate()
    # The test's end of the socket stays open: only the kernel can have ended the core.
    assert [message for message in api.messages() if not isinstance(message, StepReport)] == []
    deadline = time.monotonic() + 10
    while _is_alive(core_pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(core_pid)
    listener.close()


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("max_model_len", [1, 2, 3, 512])
def test_the_first_tokens_fit_the_smallest_window(max_model_len: int) -> None:
    runner = ChainRunner(1)
    make_first_tokens(runner, Capacity(max_model_len, 1, VOCAB_SIZE))
    assert runner.steps >= 1


def test_the_core_never_imports_torch() -> None:
    code = "import sys, pagefleet_engine.core.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0
