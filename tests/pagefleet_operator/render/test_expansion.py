"""What a user wrote reaches programs as it was written, though the kubelet puts variables into it."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api import labels
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.facts.expansion import Variable, literal, plain
from pagefleet_operator.facts.mounts import claims_of
from tests.pagefleet_api.test_runtimes import engine

HOSTILE = "$(HOME)$$(HOME)$x$(PAGEFLEET_PORT)$($"
PLAIN = "word"
SET = {"HOME": "/evil", "PAGEFLEET_PORT": "1", "PYTHONHOME": "/evil", "LC_ALL": "evil", "HF_HOME": "evil"}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """As `Expand` in k8s.io/kubernetes/third_party/forked/golang/expansion does it."""
    result, at = "", 0
    while at < len(text):
        rest = text[at + 1 :]
        if text[at] != "$" or not rest:
            result, at = result + text[at], at + 1
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            result, at = result + variables.get(name, f"$({name})"), at + len(name) + 3
        else:
            result, at = result + ("$" if rest[0] == "$" else f"${rest[0]}"), at + 2
    return result


@given(st.text(alphabet="$()aHOME"))
def test_a_literal_comes_out_as_it_was(text: str) -> None:
    assert expanded(literal(text), {"HOME": "/evil", "a": "evil", "": "evil"}) == text
    assert plain(literal(text)) == text
    assert expanded(str(Variable("HOME", text)), {"HOME": "/h"}) == f"/h{text}"


def _words(runtime: Runtime, uri: str, written: str) -> list[str]:
    """What programs of a service's pod are started with, and what is in their environments."""
    spec = {
        "model": {"uri": uri.format(written), "servedName": written},
        "engine": engine(runtime, **({"custom": {}} if runtime is Runtime.CUSTOM else {})),
    }
    meta = {"name": "s", "namespace": "n", "uid": "u", "generation": 1}
    service = InferenceService.parse({"metadata": meta, "spec": spec})
    choices = render.Choices(replicas=1, wanted=1, image="e", fetch_image="f", max_surge=1, max_unavailable=0)
    pod: dict[str, Any] = render.manifests(service, choices)[-1]["spec"]["template"]["spec"]
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    words = [word for each in containers for word in (*each.get("command", ()), *each.get("args", ()))]
    values = [variable["value"] for each in containers for variable in each.get("env", ())]
    return [expanded(word, SET).replace(service.spec.model.key, "KEY") for word in (*words, *values)]


@pytest.mark.parametrize("uri", ["s3://bucket/{}/m", "oci://r/m:1#{}/m", "file:///{}", "pvc://claim/{}/m"])
@pytest.mark.parametrize("runtime", Runtime)
def test_no_variable_comes_into_what_a_user_wrote(runtime: Runtime, uri: str) -> None:
    written, harmless = _words(runtime, uri, HOSTILE), _words(runtime, uri, PLAIN)
    assert written == [word.replace(PLAIN, HOSTILE) for word in harmless]
    assert sum(HOSTILE in word for word in written) >= 1


def test_a_folder_of_a_claim_is_known_by_its_own_name() -> None:
    args = ["--model", literal(f"file:///models/{HOSTILE}/m"), "$(HOME)"]
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": "claim"}}
    pod = {"volumes": [volume], "containers": [{"name": labels.CONTAINER, "args": args}]}
    assert claims_of(pod) == {"claim": {HOSTILE}}
