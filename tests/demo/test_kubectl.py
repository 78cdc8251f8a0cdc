"""kubectl's answers as values, with a small program in kubectl's place."""

import sys
import time
from pathlib import Path

import pytest

from e2e import kubectl as module
from e2e.demo import environment
from e2e.kubectl import Kubectl, KubectlError, Watch, followed_logs
from e2e.progress import Progress, ToolFailed, run_tool
from e2e.release import values
from e2e.service import Service, is_ready
from e2e.sites import BoxSite, ImageNames, OwnSite, site

FAKE = """#!/bin/sh
case "$*" in
*short*--watch*) echo x >> "$0.begun"; printf '{\\n  "n": %d\\n}\\n' $(wc -l < "$0.begun");;
*fails*) echo "no such thing" >&2; exit 1;;
*--watch*) printf '{\\n  "n": 1\\n}\\n{\\n  "n": 2\\n}\\n'; exec sleep 60;;
*logs*) echo "a line of $4"; exec sleep 60;;
*nothing*) ;;
*) echo '{"items": [{"n": 1}], "config": "'$KUBECONFIG'"}';;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    binary = tmp_path / "kubectl"
    binary.write_text(FAKE)
    binary.chmod(0o755)
    return Kubectl(str(binary), "a:b", "spaced")


def test_objects_come_as_values_and_an_absent_one_as_none(kubectl: Kubectl) -> None:
    assert kubectl.items("pods") == [{"n": 1}]
    assert (kubectl.get("pods", "x") or {})["config"] == "a:b"
    assert kubectl.get("pods", "nothing") is None


def test_a_failure_has_kubectls_own_words(kubectl: Kubectl) -> None:
    with pytest.raises(KubectlError, match="no such thing"):
        kubectl.run("fails")


def test_a_watch_sees_every_state_and_waits_for_one(kubectl: Kubectl) -> None:
    with Watch(kubectl, "pods", "x") as watch:
        second = watch.until(lambda body: bool(body["n"] == 2), 5)
        assert [seen.body["n"] for seen in watch.seen] == [1, 2]
        with pytest.raises(TimeoutError):
            watch.until(lambda body: bool(body["n"] == 1), 0.05, since_s=second.at_s + 1)


def test_a_watch_that_ends_begins_anew(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WATCH_AGAIN_S", 0.01)
    with Watch(kubectl, "pods", "short") as watch:
        watch.until(lambda body: bool(body["n"] == 2), 5)


def test_logs_are_followed_into_files(kubectl: Kubectl, tmp_path: Path) -> None:
    with followed_logs(kubectl, ["p1"], tmp_path) as files:
        while not files["p1"].read_text():
            time.sleep(0.01)
    assert files["p1"].read_text() == "a line of p1\n"


def test_a_resource_is_ready_only_for_its_present_spec_and_with_nothing_draining() -> None:
    status = {
        "observedGeneration": 2,
        "replicas": 1,
        "readyReplicas": 1,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    body = {"metadata": {"generation": 2}, "status": status}
    assert is_ready(body) and is_ready(body, 1) and not is_ready(body, 2)
    assert not is_ready({**body, "metadata": {"generation": 3}})
    assert not is_ready({**body, "status": {**status, "drainingReplicas": 1}}, 1)
    assert not is_ready({"metadata": {"generation": 1}})


def test_a_missing_service_is_an_error_that_names_it(kubectl: Kubectl) -> None:
    with pytest.raises(LookupError, match="nothing in spaced"):
        Service(kubectl, "nothing").object()


def test_a_tool_that_fails_is_told_with_its_last_lines() -> None:
    told: list[str] = []
    with pytest.raises(ToolFailed, match="second"):
        run_tool(["sh", "-c", "echo '[   3 s] first'; echo second >&2; exit 3"], told.append)
    assert told == ["first", "second"]
    with pytest.raises(ToolFailed, match="is missing"):
        run_tool(["no-such-tool"], told.append)


def test_steps_are_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().step("work [1/2]") as say:
        say("half [way]")
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["work [1/2]", "  half [way]"] and lines[2].startswith("work [1/2]: done in")


def test_the_environment_chooses_between_the_box_and_the_users_own_cluster(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.touch()
    assert isinstance(site({}), BoxSite)
    assert isinstance(site({"KUBECONFIG": "k"}), BoxSite)
    own = {"KUBECONFIG": f"{tmp_path}/none:{config}", "REGISTRY": "r.example/team/"}
    assert site(own) == OwnSite(own["KUBECONFIG"], "r.example/team")
    assert site(own | {"REGISTRY": "localhost:5000"}) == OwnSite(own["KUBECONFIG"], "localhost:5000")
    with pytest.raises(ValueError, match="without KUBECONFIG"):
        site({"REGISTRY": "r"})
    with pytest.raises(ValueError, match="no such file"):
        site(own | {"KUBECONFIG": f"{tmp_path}/none"})
    for registry in ("https://r.example/team", "!!", "r.example/Team", "r.example//x"):
        with pytest.raises(ValueError, match=r"HOST\[:PORT\]/PATH"):
            site(own | {"REGISTRY": registry})


def test_the_demo_s_path_has_kubectl_and_its_plugin() -> None:
    lines = environment(OwnSite("/config", "r.example")).splitlines()
    assert lines[0] == 'export KUBECONFIG="/config"'
    assert str(Path(sys.executable).parent) in lines[1].split(":")


def test_the_chart_takes_a_tag_from_the_box_and_a_digest_from_a_registry() -> None:
    local = ImageNames("localhost/pagefleet-control:dev", "localhost/pagefleet-engine:dev", "c0", "e0")
    assert values(local, 1)["image"] == {"repository": "localhost/pagefleet-control", "tag": "dev"}
    pulled = local._replace(control="r.example:5000/pagefleet-control@sha256:c0")
    assert values(pulled, 1)["image"] == {"repository": "r.example:5000/pagefleet-control", "digest": "sha256:c0"}
