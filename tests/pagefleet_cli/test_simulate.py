"""`pagefleet simulate` as a shell sees it."""

import html
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet_api import step_costs
from tests.pagefleet_cli.command import Said, Shell

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples" / "autoscaled.yaml"
OTHER = ROOT / "examples" / "office-hours.yaml"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A minute with a request a second, then one with twelve."""
    path = tmp_path / "trace.csv"
    times = [*range(60), *(60 + place / 12 for place in range(720))]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at},500,200\n" for at in times))
    return path


def _json(said: Said) -> dict[str, Any]:
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_the_json_has_the_names_that_others_rely_on(pagefleet: Shell, trace: Path) -> None:
    found = _json(pagefleet("simulate", "--trace", trace, "--policy", POLICY, "-o", "json", "--gpu-price", 2))
    assert found["timeline"][0] == {"t": 0.0, "replicas": 1, "desired": 1, "reason": "Start"}
    assert max(moment["replicas"] for moment in found["timeline"]) > 1
    assert {"p50", "p95", "p99"} == found["queueWaitSeconds"].keys()
    assert found["gpuHours"] > 0
    assert found["cost"] == pytest.approx(2 * found["gpuHours"], abs=0.01)
    assert isinstance(found["sloViolationMinutes"], int)
    assert found["directionChanges"] >= 0
    assert found["completed"] + found["refused"] + found["aborted"] == found["requests"] == 780


def test_two_policies_stand_side_by_side_with_their_difference(pagefleet: Shell, trace: Path) -> None:
    command = ("simulate", "--trace", trace, "--policy", POLICY, "--against", OTHER)
    found = _json(pagefleet(*command, "-o", "json"))
    difference = found["gpuHours"] - found["against"]["gpuHours"]
    assert found["difference"]["gpuHours"] == pytest.approx(difference, abs=1e-4)
    assert "p95" in found["difference"]["queueWaitSeconds"]
    table = pagefleet(*command)
    assert max(map(len, table.out.splitlines())) <= 80
    assert [word in table.out for word in ("autoscaled.yaml", "office-hours.yaml", "difference", "GPU hours")] == [
        True
    ] * 4


@pytest.mark.parametrize(
    ("engine", "options", "reason", "words"),
    [
        (
            {"maxNumSeqs": 2, "maxQueuedRequests": 1},
            (),
            "queueFull",
            "refused: the pod's queue was full, by engine.maxQueuedRequests 1; raise it, or have more pods in time",
        ),
        (
            {"maxModelLen": 500},
            (),
            "beyondMaxModelLen",
            "780 requests refused: the prompt leaves no room for an answer in engine.maxModelLen 500; raise it",
        ),
        (
            {},
            ("--kv-tokens", 400),
            "beyondKvCache",
            "780 requests refused: the prompt leaves no room for an answer in a KV cache of 400 tokens; --kv-tokens",
        ),
    ],
)
def test_what_is_refused_is_told_with_the_setting_that_would_change_it(
    pagefleet: Shell,
    trace: Path,
    tmp_path: Path,
    engine: dict[str, int],
    options: tuple[Any, ...],
    reason: str,
    words: str,
) -> None:
    body = yaml.safe_load(POLICY.read_text())
    body["spec"]["engine"] |= engine
    path = tmp_path / "tight.yaml"
    path.write_text(yaml.safe_dump(body))
    command = ("simulate", "--trace", trace, "--policy", path, *options)
    found = _json(pagefleet(*command, "-o", "json"))
    assert {why for why, requests in found["refusals"].items() if requests} == {reason}
    assert sum(found["refusals"].values()) == found["refused"] > 0
    table = pagefleet(*command).out
    assert words in " ".join(table.split())
    assert max(map(len, table.splitlines())) <= 80
    page = pagefleet(*command, "-o", "html").out
    assert words in html.unescape(page)


def test_the_trace_of_the_examples_makes_the_example_scale(pagefleet: Shell) -> None:
    busy = ROOT / "examples" / "traces" / "busy-minutes.csv"
    found = _json(pagefleet("simulate", "--trace", busy, "--policy", POLICY, "-o", "json"))
    assert (found["maxReplicas"], found["timeline"][-1]["replicas"]) == (6, 1)


def test_equal_seeds_give_equal_bytes(pagefleet: Shell, trace: Path) -> None:
    command = ("simulate", "--trace", trace, "--policy", POLICY, "-o", "json", "--balancing", "random")
    first, again, other = (pagefleet(*command, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_limits_give_an_exit_code_for_pipelines(pagefleet: Shell, trace: Path) -> None:
    command = ("simulate", "--trace", trace, "--policy", POLICY)
    within = pagefleet(*command, "--max-gpu-hours", 100, "--max-slo-violation-minutes", 100, "--max-p95-wait-s", 1000)
    assert (within.code, within.err) == (0, "")
    beyond = pagefleet(*command, "--max-gpu-hours", 0.01, "--max-slo-violation-minutes", 0)
    assert beyond.code == 3
    assert "autoscaled.yaml: " in beyond.err
    assert "is above --max-gpu-hours 0.01" in beyond.err
    assert "GPU hours" in beyond.out, "the answer is there all the same"


def test_a_live_service_tells_its_starts_and_its_cache(pagefleet: Shell, trace: Path, tmp_path: Path) -> None:
    body = yaml.safe_load(POLICY.read_text())
    phases = {"scheduleSeconds": 1, "imageSeconds": 1, "warmUpSeconds": 1}
    body["status"] = {
        "coldStart": {"starts": 3, "p50Seconds": 3, "p95Seconds": 3, "phases": phases},
        "capacity": {"measured": {"kvBlocks": 100, "kvTokens": 1600}},
    }
    live = tmp_path / "live.yaml"
    live.write_text(yaml.safe_dump(body))
    timeline = _json(pagefleet("simulate", "--trace", trace, "--policy", live, "-o", "json"))["timeline"]
    asked = next(moment["t"] for moment in timeline if moment["desired"] > 1)
    assert next(moment["t"] for moment in timeline if moment["replicas"] > 1) == pytest.approx(asked + 3, abs=0.01)
    pool = {"pool": "made-for-it", "starts": 1, "p50Seconds": 9, "p95Seconds": 9, "phases": phases}
    body["status"]["coldStart"]["pools"] = [pool]
    live.write_text(yaml.safe_dump(body))
    timeline = _json(pagefleet("simulate", "--trace", trace, "--policy", live, "-o", "json"))["timeline"]
    assert next(moment["t"] for moment in timeline if moment["replicas"] > 1) > asked + 3 + 5, "the latest pool counts"
    slower = pagefleet("simulate", "--trace", trace, "--policy", live, "-o", "json", "--cold-start", 30)
    assert (
        slower.out == pagefleet("simulate", "--trace", trace, "--policy", live, "-o", "json", "--cold-start", "30s").out
    )
    timeline = _json(slower)["timeline"]
    assert next(moment["t"] for moment in timeline if moment["replicas"] > 1) > asked + 3 + 20
    body["status"] = {"capacity": "unreadable"}
    live.write_text(yaml.safe_dump(body))
    assert pagefleet("simulate", "--trace", trace, "--policy", live).code == 0


def test_an_autoscaling_section_alone_is_a_policy(pagefleet: Shell, trace: Path, tmp_path: Path) -> None:
    section = {"minReplicas": 2, "maxReplicas": 3}
    for number, document in enumerate((section, {"autoscaling": section})):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(document))
        found = _json(pagefleet("simulate", "--trace", trace, "--policy", path, "-o", "json"))
        assert found["timeline"][0]["desired"] == 2


def test_a_picture_and_a_page_that_needs_nothing_else(
    pagefleet: Shell, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, page = tmp_path / "a.png", tmp_path / "a.html"
    monkeypatch.setattr("pagefleet_cli.rehearsal.figure.DPI", 20)
    command = ("simulate", "--trace", trace, "--policy", POLICY)
    assert pagefleet(*command, "-o", "png", "--out", picture).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert pagefleet(*command, "-o", "html", "--out", page).code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<svg" in text
    assert "SLO-violation minutes" in text
    assert not any(word in text for word in ("src=", "<link", "<script", "@import"))


def test_without_matplotlib_a_picture_says_what_to_install(
    pagefleet: Shell, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for kind in ("png", "html"):
        said = pagefleet("simulate", "--trace", trace, "--policy", POLICY, "-o", kind)
        assert said.code == 3
        assert f"-o {kind} needs matplotlib: pip install '.[cli,plot]'" in said.err


def test_a_long_timeline_is_cut_in_the_table(pagefleet: Shell, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefleet_cli.rehearsal.report.MOST_MOMENTS", 1)
    assert "more; -o json has them all" in pagefleet("simulate", "--trace", trace, "--policy", POLICY).out


def test_a_picture_is_not_written_to_a_terminal(pagefleet: Shell, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    said = pagefleet("simulate", "--trace", trace, "--policy", POLICY, "-o", "png")
    assert (said.code, "give --out PATH" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("document", "options", "words"),
    [
        ({"minReplicas": 3, "maxReplicas": 2}, (), "autoscaling: minReplicas 3 must not be above maxReplicas 2"),
        (
            {"maxReplicas": 2},
            ("--cold-start", 9, "--cold-start-p95", 5),
            "--cold-start-p95: 5 s is below --cold-start, 9 s",
        ),
        (
            {"maxReplicas": 2},
            ("--cold-start", "2 minutes"),
            "'2 minutes' is no such time; write seconds such as 90, or",
        ),
        ({"maxReplicas": 2}, ("--cold-start-p95", "-5"), "'-5' is no such time"),
        ({"maxReplicas": 2}, ("--cold-start", "nan"), "'nan' is no such time"),
        ({"maxReplicas": 2}, ("--slo-ttft", "0s"), "'0s' is no such time"),
        ({"maxReplicas": 2}, ("--max-p95-wait-s", "2x"), "'2x' is no such time; write seconds such as 90, or"),
        ({"maxReplicas": 2}, ("--kv-tokens", "4k"), "'4k' is no such number; write a whole number of tokens from 1 on"),
        ({"maxReplicas": 2}, ("--kv-tokens", 0), "'0' is no such number; write a whole number of tokens from 1 on"),
        ({"maxReplicas": 2}, ("--initial-replicas", 10_001), "a whole number of pods from 1 to 10000"),
        ({"maxReplicas": 2}, ("--seed", "x"), "'x' is no such number; write a whole number"),
        (
            {"maxReplicas": 2},
            ("--gpu-price", "$3"),
            "'$3' is no such number; write an amount of money such as 2.5",
        ),
        (
            {"maxReplicas": 2},
            ("--max-gpu-hours", "nan"),
            "'nan' is no such number; write GPU hours such as 2.5",
        ),
        ({"autoscaling": {"mode": "External"}}, (), "autoscaling.mode is External, so another program decides"),
        ({"maxReplicas": 2}, ("--costs", "/nowhere"), "--costs: /nowhere: No such file"),
        ({"maxReplicas": 2}, ("--costs", __file__), "the file is one JSON object with name, source"),
        ({"maxReplicas": 2}, ("-o", "json", "--out", "/nowhere/x"), "--out: /nowhere/x: No such file"),
        ({"apiVersion": "v1", "kind": "Pod"}, (), "no InferenceService"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_way_out(
    pagefleet: Shell, trace: Path, tmp_path: Path, document: dict[str, Any], options: tuple[Any, ...], words: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(document))
    said = pagefleet("simulate", "--trace", trace, "--policy", path, *options)
    assert said.code == 2
    assert words in said.err


def test_a_paused_service_and_two_services_are_no_policy(pagefleet: Shell, trace: Path, tmp_path: Path) -> None:
    body = yaml.safe_load(POLICY.read_text())
    paused = {**body, "spec": {**body["spec"], "replicas": 0}}
    del paused["spec"]["autoscaling"]
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(paused))
    assert "spec.replicas is 0" in pagefleet("simulate", "--trace", trace, "--policy", path).err
    path.write_text(yaml.safe_dump_all([body, body]))
    assert "give a file with the one to simulate" in pagefleet("simulate", "--trace", trace, "--policy", path).err


def test_own_costs_make_another_pod(pagefleet: Shell, trace: Path, tmp_path: Path) -> None:
    slow = tmp_path / "costs.json"
    slow.write_text(step_costs.default().model_copy(update={"weights_s": 0.1}).model_dump_json())
    command = ("simulate", "--trace", trace, "--policy", POLICY, "-o", "json", "--kv-tokens", 20_000)
    fast, slower = (_json(pagefleet(*command, *options)) for options in ((), ("--costs", slow)))
    assert slower["gpuHours"] > fast["gpuHours"]
