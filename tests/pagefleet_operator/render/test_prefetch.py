"""The Job that downloads a model onto a claim."""

from typing import Any

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.facts.mounts import claims_of

CACHE = {"mode": "PVC", "pvc": "models"}


def service(name: str = "s", cache: dict[str, Any] = CACHE, **spec: Any) -> InferenceService:
    model = {
        "uri": "hf://org/name",
        "revision": "v1",
        "secretRef": {"name": "t"},
        "cache": cache,
        **spec.pop("model", {}),
    }
    whole = {"model": model, "engine": {"device": "cpu", "kvCache": {"size": "64Mi"}}, **spec}
    return InferenceService.parse({"metadata": {"name": name, "namespace": "n", "uid": f"uid {name}"}, "spec": whole})


def test_services_with_one_model_and_claim_have_one_job_that_both_own() -> None:
    one, two = service("one"), service("two")
    assert render.job_name(one) == render.job_name(two)
    job = render.fetch_job(two, [two, one], "control:1", ())
    assert [owner["name"] for owner in job["metadata"]["ownerReferences"]] == ["one", "two"]
    assert not any("controller" in owner for owner in job["metadata"]["ownerReferences"])


def test_another_claim_or_version_is_another_job() -> None:
    names = {
        render.job_name(service()),
        render.job_name(service(cache={"mode": "PVC", "pvc": "other"})),
        render.job_name(service(model={"revision": "v2"})),
    }
    assert len(names) == 3
    assert all(len(name) <= labels.NAME_LIMIT for name in names)


def test_the_job_writes_where_engines_read_and_its_pods_are_nobodys_engine() -> None:
    one = service()
    job = render.fetch_job(one, [one], "control:1", ())
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["args"][1:3] == ["--into", f"/models/{one.spec.model.key}"]
    assert container["envFrom"] == [{"secretRef": {"name": "t"}}]
    assert labels.SERVICE not in template["metadata"]["labels"]
    assert template["metadata"]["labels"][labels.FETCH] == job["metadata"]["name"]
    assert template["spec"]["volumes"][0] == {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}


def test_a_limit_names_the_models_that_stay() -> None:
    one = service(cache={**CACHE, "limit": "5Gi"})
    job = render.fetch_job(one, [one], "control:1", {"other", one.spec.model.key})
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-4:] == ["--limit", "5Gi", "--in-use", "other"]


def test_the_download_goes_where_the_services_pods_may_go() -> None:
    placed = service(podTemplate={"spec": {"nodeSelector": {"zone": "a"}, "priorityClassName": "high"}})
    pod = render.fetch_job(placed, [placed], "control:1", ())["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert "priorityClassName" not in pod
    assert render.job_digest(placed) != render.job_digest(service())


def test_what_a_patch_takes_away_is_nothing_for_the_download() -> None:
    kept = {"key": "a", "operator": "Exists"}
    patch = {"nodeSelector": {"zone": None, "disk": "ssd"}, "tolerations": [{"$patch": "replace"}, kept]}
    placed = service(podTemplate={"spec": {**patch, "affinity": {"$patch": "delete"}}})
    pod = render.fetch_job(placed, [placed], "control:1", ())["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "ssd"} and pod["tolerations"] == [kept] and "affinity" not in pod


def test_folders_of_a_claim_that_are_in_use() -> None:
    cached = service().spec.model
    assert render.folders_on(cached, "models") == {cached.key}
    assert render.folders_on(cached, "other") == set()
    mounted = service(model={"uri": "pvc://models/a/b", "revision": None, "secretRef": None, "cache": {}}).spec.model
    assert render.folders_on(mounted, "models") == {"a"}
    assert render.folders_on(mounted, "other") == set()


def test_the_last_roll_out_is_known_from_the_deployment() -> None:
    choices = render.Choices(replicas=1, wanted=1, image="e", fetch_image="f", max_surge=1, max_unavailable=0)
    before = service(engine={"device": "cpu", "kvCache": {"size": "64Mi"}, "maxNumSeqs": 3})
    live = render.manifests(before, choices)[-1]
    after = service(model={"revision": "v2"}, replicas=7)
    held = render.with_earlier_model(after, live)
    assert held is not None
    assert (held.spec.model.revision, held.spec.engine.max_num_seqs, held.spec.replicas) == ("v1", 3, 7)
    assert render.manifests(held, choices)[-1]["spec"]["template"] == live["spec"]["template"]
    assert render.with_earlier_model(before, live) is None
    assert render.with_earlier_model(after, None) is None
    broken = {"metadata": {"annotations": {"pagefleet.io/pods-spec": "{"}}}
    assert render.with_earlier_model(after, broken) is None


def test_folders_that_pods_of_a_template_read_whatever_their_service_says() -> None:
    choices = render.Choices(replicas=1, wanted=1, image="e", fetch_image="f", max_surge=1, max_unavailable=0)
    custom = {"runtime": "custom", "image": "own", "custom": {}}
    for cached in (service(), service(engine=custom)):
        template = render.manifests(cached, choices)[-1]["spec"]["template"]
        assert claims_of(template["spec"]) == {"models": {cached.spec.model.key}}
    assert claims_of({}) == {}


def test_a_live_job_tells_what_it_leaves() -> None:
    limited, free = service(cache={**CACHE, "limit": "5Gi"}), service()
    job = render.fetch_job(limited, [limited], "control:1", {"one", "two", limited.spec.model.key})
    assert render.stays(job) == {"one", "two", limited.spec.model.key}
    assert render.stays(render.fetch_job(free, [free], "control:1", {"one"})) is None
