"""Flags and their variables."""

import logging
import os
import subprocess
import sys

import pytest

from pagefleet_operator import logs, settings
from pagefleet_operator.settings import Address


def test_defaults_serve_the_whole_cluster_on_port_8080() -> None:
    parsed = settings.parse([], {})
    assert parsed.namespaces == ()
    assert parsed.listen == Address("", 8080)
    assert parsed.log_format == "json"


def test_flags_win_over_variables_and_variables_over_defaults() -> None:
    environment = {"PAGEFLEET_ENGINE_IMAGE": "from-env", "PAGEFLEET_LEASE_NAME": "from-env", "POD_NAME": "pod-1"}
    parsed = settings.parse(["--engine-image", "from-flag"], environment)
    assert (parsed.engine_image, parsed.lease_name, parsed.identity) == ("from-flag", "from-env", "pod-1")


def test_namespaces_repeat_as_flags_and_are_a_list_as_a_variable() -> None:
    assert settings.parse(["--namespace", "a", "--namespace", "b", "--namespace", "a"], {}).namespaces == ("a", "b")
    assert settings.parse([], {"PAGEFLEET_NAMESPACE": "a, b"}).namespaces == ("a", "b")
    assert settings.parse(["--namespace", "c"], {"PAGEFLEET_NAMESPACE": "a,b"}).namespaces == ("c",)


def test_two_processes_without_a_pod_name_have_different_identities() -> None:
    assert settings.parse([], {}).identity != settings.parse([], {}).identity


@pytest.mark.parametrize(
    ("text", "address"),
    [(":9", Address("", 9)), ("127.0.0.1:80", Address("127.0.0.1", 80)), ("[::1]:80", Address("::1", 80))],
)
def test_an_address_has_an_optional_host(text: str, address: Address) -> None:
    assert settings.parse(["--listen", text], {}).listen == address


@pytest.mark.parametrize("text", ["8080", "x:y", ":70000", ""])
def test_a_wrong_address_ends_with_status_2_and_names_the_flag(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.parse(["--listen", text], {})
    assert ended.value.code == 2
    assert "--listen" in capsys.readouterr().err


def test_origins_are_a_list_of_addresses_without_paths(capsys: pytest.CaptureFixture[str]) -> None:
    listed = settings.parse(["--model-origins", "https://Minio.storage:443/,http://10.0.0.1:80 http://[::1]:9"], {})
    assert listed.model_origins == {"https://minio.storage", "http://10.0.0.1", "http://[::1]:9"}
    assert settings.parse([], {"PAGEFLEET_MODEL_ORIGINS": "http://a"}).model_origins == {"http://a"}
    assert settings.parse([], {}).model_origins == set()
    for wrong in ("minio:9000", "s3://bucket", "http://a/models", "http://user@a"):
        with pytest.raises(SystemExit):
            settings.parse(["--model-origins", wrong], {})
        assert f"--model-origins: {wrong!r} is not http(s)://HOST[:PORT]" in capsys.readouterr().err


def test_a_shard_has_a_lease_of_its_own_unless_one_is_named() -> None:
    assert settings.parse([], {}).lease_name == "pagefleet-operator"
    blue = settings.parse(["--lease-namespace", "system"], {"PAGEFLEET_SHARD": "blue"})
    assert blue.owner == ("system", "pagefleet-operator-blue", "blue")
    assert settings.parse(["--shard", "blue", "--lease-name", "own"], {}).lease_name == "own"


def test_models_are_kept_on_nodes_where_a_folder_is_given() -> None:
    assert settings.parse([], {}).node_cache is None
    given = ["--node-cache", "/var/lib/models/", "--node-cache-limit", "1Ti", "--node-cache-pull-secret", "registry"]
    assert settings.parse(given, {}).node_cache == ("/var/lib/models", "1Ti", ("registry",))
    environment = {"PAGEFLEET_NODE_CACHE": "/models", "PAGEFLEET_NODE_CACHE_LIMIT": "1Gi"}
    assert settings.parse([], environment).node_cache == ("/models", "1Gi", ())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--node-cache", "models"], "'models' is no folder of its own, for example /var/lib/pagefleet/models"),
        (["--node-cache", "//"], "'//' is no folder of its own"),
        (["--node-cache", "/a/../b"], "is no folder of its own"),
        (["--node-cache", "/m", "--node-cache-limit", "much"], "much"),
        (["--node-cache", "/m", "--namespace", "a"], "leave out --namespace and --shard, or it"),
        (["--node-cache", "/m", "--shard", "blue"], "leave out --namespace and --shard, or it"),
    ],
)
def test_a_wrong_place_on_nodes_is_refused(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.parse(flags, {})
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("text", ["Blue", "a_b", "-a", "a" * 41])
def test_a_shard_that_cannot_be_in_a_leases_name_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings.parse([f"--shard={text}"], {})
    assert "small letters, digits and dashes" in capsys.readouterr().err


def test_a_wrong_variable_ends_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.parse([], {"PAGEFLEET_LISTEN": "nonsense"})
    assert ended.value.code == 2
    assert "nonsense" in capsys.readouterr().err


def test_help_explains_every_flag_and_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit) as ended:
            settings.parse([flag], {})
        assert ended.value.code == 0
    text = capsys.readouterr().out
    flags = (
        "engine-image",
        "fetch-image",
        "namespace",
        "shard",
        "listen",
        "lease-namespace",
        "lease-name",
        "log-format",
        "custom-metrics",
        "node-cache",
        "node-cache-limit",
        "node-cache-pull-secret",
    )
    for flag in flags:
        assert f"--{flag}" in text


def test_importing_the_program_starts_and_reads_nothing() -> None:
    code = "import pagefleet_operator.program as p, sys, threading as t; print(t.active_count(), 'grpc' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name not in ("USER", "KUBECONFIG")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1", "False"], "servers that are off cost nothing"


def _record(name: str, text: str, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "msg": text, "levelname": "INFO", **fields})


def test_text_is_for_a_terminal() -> None:
    assert logs.Text().format(_record("pagefleet_operator.x", "replicas_resized", before=2)).endswith("before=2")


def test_an_exception_is_below_the_text() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = _record("pagefleet_operator.x", "pass_crashed", exc_info=sys.exc_info())
    assert "ValueError: why" in logs.Text().format(record)
