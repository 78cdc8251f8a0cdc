import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagefleet_cli.errors import FactsMissing, InputWrong
from pagefleet_cli.explaining import access, asking, looking
from pagefleet_cli.explaining.access import Refused, Web
from pagefleet_cli.explaining.text import as_json, as_text
from tests.pagefleet_cli.command import Shell
from tests.pagefleet_cli.explaining import scenes
from tests.pagefleet_cli.explaining.scenes import PLACE, SERVICE, WALL, Answers, told

CONTEXT = {"cluster": "x", "user": "x"}


@pytest.mark.parametrize(("name", "scene"), scenes.scenes().items())
def test_the_text_is_as_in_its_file(name: str, scene: asking.Told) -> None:
    wanted = (scenes.FOLDER / f"{name}.txt").read_text()
    assert f"{as_text(scene, WALL)}\n" == wanted, "python -m tests.pagefleet_cli.explaining.scenes writes it anew"


def test_the_json_says_who_told_it_and_has_what_the_text_has() -> None:
    found = json.loads(as_json(told()))
    assert (found["source"], found["decision"]["desired"], found["readyReplicas"]) == ("operator", 4, 3)
    assert found["nextSteps"]["downAfterSeconds"] == 236.4
    assert [change["reason"] for change in found["changes"]] == ["WaitingRequests"]
    assert [condition["type"] for condition in found["conditions"]] == ["AbleToScale"]
    fixed = json.loads(as_json(scenes.scenes()["fixed"]))
    assert (fixed["source"], fixed["decision"], fixed["nextSteps"]) == ("status", None, None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"DEPLOYMENT": {"metadata": {}}}, "does not name it"),
        ({"LEASE": {"spec": {"holderIdentity": ""}}}, "nobody holds the Lease pagefleet-system/pagefleet-operator"),
        ({"DECISIONS": None}, "is not found"),
        ({"DECISIONS": {"decisions": "none"}}, "another version"),
    ],
)
def test_without_the_operator_the_status_tells_and_says_why(changed: dict[str, Any], words: str) -> None:
    found = told(**changed)
    assert found.decision is not None
    assert found.explanation is None
    assert words in found.source


def test_the_operator_of_groups_is_named_by_their_set() -> None:
    deployment = scenes.CLUSTER[scenes.DEPLOYMENT]
    assert told(DEPLOYMENT=None, GROUPS=deployment).explanation is not None
    assert "its LeaderWorkerSet does not name it" in told(DEPLOYMENT=None, GROUPS={"metadata": {}}).source


def test_a_status_of_another_version_is_no_error() -> None:
    assert told(SERVICE={"spec": {}, "status": {"conditions": "no"}}).status.conditions == ()


def test_a_service_that_is_not_there_and_a_cluster_that_refuses() -> None:
    with pytest.raises(InputWrong, match="there is no InferenceService team/chat"):
        told(SERVICE=None)

    class Forbidding(Answers):
        def get(self, path: str, _: Any = None) -> Any:
            raise Refused(403, "you may not")

    with pytest.raises(FactsMissing, match="you may not"):
        asking.ask(Forbidding(), PLACE, None)


@pytest.mark.parametrize(
    "argument", ["infs/chat", "chat", "inferenceservices.pagefleet.io/chat", "InferenceService/chat"]
)
def test_a_service_is_named_as_for_kubectl(argument: str) -> None:
    assert asking.service_name(argument) == "chat"


@pytest.mark.parametrize("argument", ["pod/chat", "infs/", ""])
def test_another_kind_is_refused(pagefleet: Shell, argument: str) -> None:
    said = pagefleet("explain", argument)
    assert (said.code, "write infs/NAME" in said.err) == (2, True)


def test_looks_follow_one_another_until_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    looking.look(Answers(scenes.CLUSTER), PLACE, None, looking.Manner("json", 1.5))
    assert slept == [1.5, 1.5]
    assert capsys.readouterr().out.count('"source": "operator"') == 2
    looking.look(Answers(scenes.CLUSTER), PLACE, None, looking.Manner("text"))
    assert "4 wanted" in capsys.readouterr().out


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An API server of the scene's answers, in the kubeconfig; gives the tokens that it was shown."""
    tokens: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers.get("Authorization", ""))
            known = self.path in scenes.CLUSTER
            body = scenes.CLUSTER[self.path] if known else {"kind": "Status", "message": "there is none"}
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode() if self.path != "/text" else b"no JSON")

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield tokens
    server.shutdown()
    server.server_close()


def test_the_kubeconfig_says_where_the_cluster_is_and_which_namespace(pagefleet: Shell, api: list[str]) -> None:
    said = pagefleet("explain", "infs/chat")
    assert said.code == 0, said.err
    assert "team/chat: 4 wanted, 3 ready" in said.out
    assert set(api) == {"Bearer secret"}
    missing = pagefleet("explain", "infs/other", "-n", "elsewhere", "--context", "x")
    assert (missing.code, "there is no InferenceService elsewhere/other" in missing.err) == (2, True)
    wrong = pagefleet("explain", "infs/chat", "--context", "nowhere")
    assert (wrong.code, "set KUBECONFIG, or --context" in wrong.err) == (3, True)


def test_without_a_kubeconfig_it_says_what_to_set(
    pagefleet: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    said = pagefleet("explain", "infs/chat")
    assert (said.code, f"no kubeconfig {tmp_path / 'none'}" in said.err, said.out) == (3, True, "")
    assert "set KUBECONFIG" in said.err


@pytest.mark.parametrize("text", [": : {", "words", "[1]", "clusters: 3", ""])
def test_a_file_that_is_no_kubeconfig_is_told_in_one_line(
    pagefleet: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    said = pagefleet("explain", "infs/chat")
    assert (said.code, len(said.err.splitlines()), "set KUBECONFIG" in said.err) == (3, 1, True)


@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        ({"token": "very\nsecret"}, {"server": "http://127.0.0.1:9"}, "the token of"),
        ({"token": "very secré"}, {"server": "http://127.0.0.1:9"}, "the token of"),
        ({}, {"server": "cluster.example"}, "the server of"),
        ({}, {"server": "ftp://admin:very-secr@cluster.example"}, "write https://HOST:PORT"),
        ({}, {"server": "admin:very-secr@cluster.example"}, "does not begin with https://"),
        ({}, {"server": "https://admin:very-secr@cluster.example"}, "a user or a password in it"),
        ({}, {"server": "https://cluster.example:very-secr"}, "is no address"),
        ({}, {"server": "https://:6443"}, "names no host"),
        ({}, {"server": "https://127.0.0.1:9", "certificate-authority-data": "AAAA"}, "certificate"),
        (
            {"client-certificate-data": "AAAA", "client-key-data": "c2VjcmV0"},
            {"server": "https://127.0.0.1:9"},
            "certificate",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_told_in_one_line_without_its_secrets(
    pagefleet: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: dict[str, str],
    cluster: dict[str, str],
    words: str,
) -> None:
    named = {"users": {"user": user}, "clusters": {"cluster": cluster}, "contexts": {"context": CONTEXT}}
    config: dict[str, Any] = {kind: [{"name": "x", **content}] for kind, content in named.items()}
    (tmp_path / "config").write_text(json.dumps(config | {"current-context": "x"}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    said = pagefleet("explain", "infs/chat")
    assert (said.code, said.out, len(said.err.splitlines()), words in said.err) == (3, "", 1, True), said.err
    assert "secr" not in said.err


def test_in_a_pod_the_account_is_the_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("kubernetes.config.load_incluster_config", _in_a_pod)
    cluster = access.connect(None)
    assert cluster == access.Cluster(Web("http://10.0.0.1", (("Authorization", "Bearer of the pod"),)), "default")


def _in_a_pod(client_configuration: Any) -> None:
    client_configuration.host = "http://10.0.0.1"
    client_configuration.api_key["authorization"] = "Bearer of the pod"


def test_what_is_no_answer_has_words(api: list[str]) -> None:
    server = json.loads(Path(os.environ["KUBECONFIG"]).read_text())["clusters"][0]["cluster"]["server"]
    assert "status" in Web(server).get(SERVICE)
    with pytest.raises(Refused, match="there is none") as refused:
        Web(server).get("/none")
    assert refused.value.status == 404
    for address in ("nowhere", "http://admin:secret@127.0.0.1:9", "http://127.0.0.1:secret"):
        with pytest.raises(Refused) as refused:
            Web(address).get("/")
        assert refused.value.status == 0
        assert "secret" not in str(refused.value)
    with pytest.raises(Refused) as refused:
        Web("http://127.0.0.1:9").get("/")
    assert refused.value.status == 0
    assert access._words(b"plain") == "plain"


def test_the_page_shows_what_the_program_prints() -> None:
    page = (Path(__file__).parents[3] / "docs" / "autoscaling.md").read_text()
    text = (scenes.FOLDER / "operator.txt").read_text()
    assert text[: text.index("\nLatest changes")] in page
