"""A model on nodes as objects."""

import json
import re
from pathlib import Path

import pytest

from pagefleet_api import labels
from pagefleet_operator import render
from pagefleet_operator.render.model import claim_name, model_place
from tests.pagefleet_operator.plan.nodes import STORE, made, model_of, user


def test_one_name_for_one_model_whoever_wants_it() -> None:
    assert render.node_model_name(user()) == render.node_model_name(user("t", "m"))
    assert render.node_model_name(user()) != render.node_model_name(user(model={"revision": "v2"}))


def test_with_credentials_whose_they_are_is_part_of_the_name() -> None:
    users = [user(), user(secret="x"), user(secret="y"), user(namespace="m", secret="x")]
    assert len({render.node_model_name(each) for each in users}) == 4
    assert render.node_model_name(user(secret="x")) == render.node_model_name(user("t", secret="x"))
    assert len({claim_name(each.spec.model) for each in users}) == 3


def test_names_are_valid_labels_and_objects() -> None:
    long = user(model={"uri": f"hf://org/{'x' * 90}"})
    assert len(render.node_model_name(long)) <= 63
    assert len(model_of(long).volumes["n"]["metadata"]["name"]) <= 253


def test_only_the_operators_namespace_touches_the_nodes_disk() -> None:
    model = model_of()
    pod = model.daemon_set["spec"]["template"]["spec"]
    assert model.daemon_set["metadata"]["namespace"] == STORE.namespace
    assert {"name": "models", "hostPath": {"path": "/var/lib/models", "type": "DirectoryOrCreate"}} in pod["volumes"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["args"][-2:] == ["--limit", "1Gi"]
    place = model_place(user().spec, "control:1")
    assert "hostPath" not in json.dumps(place.volumes)
    assert place.mounts[0]["readOnly"] is True


def test_a_volume_is_for_one_claim_on_nodes_that_have_the_model_and_cannot_be_written_to() -> None:
    model = model_of(user(), user(namespace="m"))
    volume, claim = model.volumes["m"], model.claims["m"]
    reference = volume["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"]) == ("m", claim["metadata"]["name"])
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"] != model.volumes["n"]["metadata"]["name"]
    assert volume["spec"]["mountOptions"] == ["ro"]
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == [labels.NODE_MODEL_READY]
    assert volume["spec"]["local"]["path"] == f"/var/lib/models/{model.name}"


def test_an_engine_finds_a_file_of_its_model() -> None:
    one = user(model={"uri": "https://h/models/m.gguf", "revision": None})
    place = model_place(one.spec, "control:1")
    assert place.path is not None and place.path.endswith("/m.gguf")
    assert place.volumes[0]["persistentVolumeClaim"]["claimName"] == claim_name(one.spec.model)


def test_credentials_reach_the_download_alone_and_bring_nothing_else_along() -> None:
    model = model_of(user(secret="t"))
    (container,) = model.daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": model.name}}]
    data = {"HF_TOKEN": "aGY=", "AWS_REGION": "eA==", "LD_PRELOAD": "eA==", "PATH": "eA=="}
    kept = render.credentials({"data": data})
    assert kept == {"HF_TOKEN": "aGY=", "AWS_REGION": "eA=="}
    copy = render.copied_secret(model, made(model.daemon_set), kept)
    assert (copy["metadata"]["namespace"], copy["metadata"]["name"]) == (STORE.namespace, model.name)
    assert [owner["kind"] for owner in copy["metadata"]["ownerReferences"]] == ["DaemonSet"]
    assert render.credentials({}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_AUTHORITY_HOST",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ENDPOINT_URL_STS",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_SHARED_CREDENTIALS_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT",
    ],
)
def test_no_secret_names_a_file_of_the_node_or_who_gets_its_content(name: str) -> None:
    assert render.credentials({"data": {name: "eA=="}}) == {}


def test_every_key_that_the_page_of_sources_names_reaches_the_download() -> None:
    page = (Path(__file__).parents[3] / "docs" / "model-sources.md").read_text()
    table = page.partition("| source | keys |")[2].partition("## ")[0]
    named = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", table))
    assert "HF_TOKEN" in named and set(render.credentials({"data": dict.fromkeys(named, "eA==")})) == named


def test_without_a_limit_or_a_private_registry_nothing_is_said_of_them() -> None:
    plain = render.node_model([user()], STORE._replace(limit=None, pull_secrets=()))
    pod = plain.daemon_set["spec"]["template"]["spec"]
    assert "imagePullSecrets" not in pod and "--limit" not in pod["containers"][0]["args"]
    tolerant = user(podTemplate={"spec": {"tolerations": [{"operator": "Exists"}]}})
    placed = render.node_model([tolerant], STORE).daemon_set["spec"]["template"]["spec"]
    assert placed["tolerations"] == [{"operator": "Exists"}] and "tolerations" not in pod
