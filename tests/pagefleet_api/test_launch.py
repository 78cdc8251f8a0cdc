import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api.launch import (
    DEVICES,
    DTYPES,
    LOAD_FORMATS,
    SCHEDULING_POLICIES,
    Adapter,
    Launch,
    option,
    parser,
)

text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)
plain = text.filter(lambda value: not value.startswith("-"))
count = st.integers(1, 2**31)
key = text.map(str.strip).filter(bool)
adapter = st.builds(Adapter, plain.filter(lambda name: "=" not in name), text)

launches = st.builds(
    Launch,
    model=plain,
    served_model_name=st.none() | plain,
    adapters=st.lists(adapter, max_size=4, unique_by=lambda given: given.name).map(tuple),
    device=st.sampled_from(DEVICES),
    dtype=st.sampled_from(DTYPES),
    load_format=st.sampled_from(LOAD_FORMATS),
    host=plain,
    port=st.integers(0, 65535),
    max_model_len=st.none() | count,
    max_num_seqs=count,
    max_num_batched_tokens=st.none() | count,
    scheduling_policy=st.sampled_from(SCHEDULING_POLICIES),
    num_kv_blocks=st.none() | count,
    kv_cache_bytes=st.none() | count,
    gpu_memory_utilization=st.floats(0, 1, exclude_min=True),
    prefix_cache=st.booleans(),
    cuda_graphs=st.booleans(),
    batch_invariant=st.booleans(),
    tensor_parallel_size=count,
    max_queued_requests=st.integers(0, 2**31),
    drain_timeout_s=st.integers(0, 10**6),
    admin_port=st.none() | st.integers(0, 65535),
    chat_template=st.none() | plain,
    vllm_metric_names=st.booleans(),
    require_api_key=st.booleans(),
    api_key=st.lists(key, max_size=12).map(tuple),
).filter(
    lambda launch: (
        (bool(launch.api_key) or not launch.require_api_key) and (not launch.port or launch.port != launch.admin_port)
    )
)


@given(launches)
def test_argv_and_environment_parse_back_to_the_same_launch(launch: Launch) -> None:
    assert Launch.parse(launch.argv(), launch.environment()) == launch


@given(launches)
def test_keys_never_reach_the_command_line_or_the_repr(launch: Launch) -> None:
    secret = dataclasses.replace(launch, api_key=("s3cr3t-key-of-a-user",))
    assert "s3cr3t" not in " ".join(secret.argv())
    assert "s3cr3t" not in repr(secret)


def test_help_lists_every_field() -> None:
    shown = parser().format_help()
    for spec in dataclasses.fields(Launch):
        assert option(spec.name) in shown


def test_keys_on_the_command_line_and_in_the_environment_add_up() -> None:
    launch = Launch.parse(
        ["--model", "pkg://m", "--api-key", "a", "--api-key", "b"], {"PAGEFLEET_API_KEY_0": "c", "X": "d"}
    )
    assert launch.api_key == ("a", "b", "c")


@pytest.mark.parametrize("written", ["k\n", " k", "k\r\n", "\tk "])
def test_a_keys_margin_is_cut_as_files_end_in_a_line_break(written: str) -> None:
    assert Launch.parse(["--model", "pkg://m"], {"PAGEFLEET_API_KEY_0": written}).api_key == ("k",)
    assert Launch.parse(["--model", "pkg://m", "--api-key", written]).api_key == ("k",)


@pytest.mark.parametrize(("value", "says"), [("", "blank"), (" \n", "blank"), ("s3cret\nother", "line break")])
def test_a_key_that_cannot_be_sent_keeps_the_engine_from_starting_and_is_not_shown(
    value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        Launch.parse(["--model", "pkg://m"], {"PAGEFLEET_API_KEY_good": "k", "PAGEFLEET_API_KEY_team": value})
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert "PAGEFLEET_API_KEY_team" in message
    assert says in message
    assert "s3cret" not in message


def test_an_engine_that_must_have_keys_does_not_start_without(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Launch.parse(["--model", "pkg://m", "--require-api-key"], {"PATH": "x"})
    assert "--require-api-key" in capsys.readouterr().err
    assert Launch.parse(["--model", "pkg://m", "--require-api-key"], {"PAGEFLEET_API_KEY_0": "k"}).api_key == ("k",)


def test_the_core_process_which_is_given_no_keys_starts_all_the_same() -> None:
    assert Launch.parse(["--model", "pkg://m", "--require-api-key"]).require_api_key


def test_two_adapters_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Launch.parse(["--model", "pkg://m", "--adapter", "sql=/a", "--adapter", "sql=/b"])
    assert "--adapter: the name 'sql' is given twice" in capsys.readouterr().err


def test_a_size_may_be_written_as_a_quantity() -> None:
    assert Launch.parse(["--model", "pkg://m", "--kv-cache-bytes", "512Mi"]).kv_cache_bytes == 512 * 2**20


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--max-num-seqs", "0", "at least 1"),
        ("--max-queued-requests", "-1", "at least 0"),
        ("--port", "70000", "between 0 and 65535"),
        ("--kv-cache-bytes", "lots", "512Mi"),
        ("--device", "tpu", "cpu"),
        ("--max-num-seqs", "many", "must be a number at least 1, but it is 'many'"),
        ("--max-num-seqs", "9" * 5000, "must be a number at least 1"),
        ("--drain-timeout-s", "1h", "must be a number at least 0"),
        ("--port", "abc", "must be a number between 0 and 65535, but it is 'abc'"),
        ("--kv-cache-bytes", "0", "0 must be at least 1"),
        ("--adapter", "/models/sql", "must be a name and a folder, as sql=/models/sql-lora, but it is '/models/sql'"),
        ("--adapter", "=/models/sql", "must be a name and a folder"),
        ("--adapter", "sql=", "must be a name and a folder"),
        ("--max-model-length", "5", "unrecognized"),
    ],
)
def test_a_bad_flag_is_refused_with_its_name_and_what_it_takes(
    flag: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        Launch.parse(["--model", "pkg://m", f"{flag}={value}"])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert flag in message
    assert says in message
    assert "invalid _" not in message


def test_one_port_for_both_listeners_is_refused_by_both_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Launch.parse(["--model", "pkg://m", "--port", "8000", "--admin-port", "8000"])
    assert "--port and --admin-port are both 8000" in capsys.readouterr().err
    free = Launch.parse(["--model", "pkg://m", "--port", "0", "--admin-port", "0"])
    assert (free.port, free.admin_port) == (0, 0)


def test_the_engine_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Launch.parse([])
    assert "--model" in capsys.readouterr().err


def test_flags_are_written_nowhere_else() -> None:
    """The operator builds its arguments from `Launch` alone."""
    operator = Path(__file__).parents[2] / "operator"
    for source in operator.rglob("render/*.py"):
        assert not re.search(r"[\"']--(model|max-|kv-|served)", source.read_text()), source
