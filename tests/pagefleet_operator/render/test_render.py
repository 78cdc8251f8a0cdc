"""What must hold for everything that is rendered, whatever the service."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api import labels
from pagefleet_api.launch import Launch
from pagefleet_api.service import Drain, InferenceService
from pagefleet_operator import render
from pagefleet_operator.render.drain import leaving
from pagefleet_operator.render.manifests import ENGINE_DIGEST, ENGINE_IMAGE

_CHOICES = render.Choices(replicas=2, wanted=2, image="engine:1", fetch_image="f", max_surge=1, max_unavailable=0)


def _service(name: str = "s", generation: int = 1, **spec: Any) -> InferenceService:
    whole = {"model": {"uri": "pkg://m"}, "engine": {"device": "cpu", "kvCache": {"size": "64Mi"}}, **spec}
    meta = {"name": name, "namespace": "n", "uid": "u", "generation": generation}
    return InferenceService.parse({"metadata": meta, "spec": whole})


def _deployment(service: InferenceService, choices: render.Choices = _CHOICES) -> dict[str, Any]:
    return render.manifests(service, choices)[-1]


def _pod(service: InferenceService) -> dict[str, Any]:
    template: dict[str, Any] = _deployment(service)["spec"]["template"]
    return template


_SERVICES = st.builds(
    _service,
    name=st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,98}[a-z0-9])?", fullmatch=True),
    generation=st.integers(1, 10**9),
    replicas=st.integers(0, 100),
    drain=st.fixed_dictionaries({"timeoutSeconds": st.integers(0, 86_400)}),
    engine=st.fixed_dictionaries(
        {"device": st.just("cpu"), "kvCache": st.just({"size": "1Gi"}), "maxNumSeqs": st.integers(1, 65_536)},
        optional={
            "maxModelLen": st.integers(16, 10**6),
            "maxQueuedRequests": st.integers(0, 10**6),
            "dtype": st.sampled_from(["auto", "float32", "bfloat16"]),
            "image": st.just("mine:3"),
            "chatTemplate": st.just({"configMapKeyRef": {"name": "c", "key": "k"}}),
            "apiKeysSecretRef": st.just({"name": "keys"}),
        },
    ),
)


@given(_SERVICES)
def test_equal_input_gives_equal_bytes(service: InferenceService) -> None:
    again = service.model_copy(deep=True)
    assert json.dumps(render.manifests(service, _CHOICES)) == json.dumps(render.manifests(again, _CHOICES))


@given(_SERVICES)
def test_the_engine_reads_back_the_flags_that_it_is_given(service: InferenceService) -> None:
    (container,) = _pod(service)["spec"]["containers"]
    launch = Launch.parse(container["args"])
    assert launch.max_num_seqs == service.spec.engine.max_num_seqs
    assert launch.drain_timeout_s == service.spec.drain.timeout_seconds
    assert launch.admin_port == labels.ADMIN_PORT
    assert launch.kv_cache_bytes == 2**30
    assert (launch.chat_template is not None) == (service.spec.engine.chat_template is not None)


@given(_SERVICES)
def test_names_and_label_values_fit_and_children_belong_to_their_service(service: InferenceService) -> None:
    for manifest in render.manifests(service, _CHOICES):
        meta = manifest["metadata"]
        assert len(meta["name"]) <= labels.NAME_LIMIT
        assert all(len(value) <= labels.NAME_LIMIT for value in meta["labels"].values())
        (owner,) = meta["ownerReferences"]
        assert (owner["uid"], owner["name"], owner["controller"]) == (service.uid, service.name, True)


@given(_SERVICES)
def test_pods_meet_the_restricted_standard_and_hold_no_token(service: InferenceService) -> None:
    spec = _pod(service)["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]} <= {"emptyDir", "configMap"}


@given(_SERVICES)
def test_a_pod_gets_more_time_to_end_than_its_drain_takes(service: InferenceService) -> None:
    spec = _pod(service)["spec"]
    assert spec["terminationGracePeriodSeconds"] > service.spec.drain.timeout_seconds + 5


@given(_SERVICES)
def test_the_serving_label_is_in_the_service_and_the_template_but_in_no_replica_set(service: InferenceService) -> None:
    _, network, *_, deployment = render.manifests(service, _CHOICES)
    template = deployment["spec"]["template"]["metadata"]["labels"]
    assert network["spec"]["selector"].items() <= template.items()
    assert network["spec"]["selector"][labels.SERVING] == labels.SERVING_TRUE
    assert deployment["spec"]["selector"]["matchLabels"] == labels.selector(service.name)


def test_a_start_may_take_half_an_hour_before_liveness_counts() -> None:
    (container,) = _pod(_service())["spec"]["containers"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    assert startup["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_api_keys_travel_in_the_environment_and_never_in_arguments() -> None:
    engine = {"device": "cpu", "kvCache": {"size": "1Gi"}, "apiKeysSecretRef": {"name": "keys"}}
    pod = _pod(_service(engine=engine))
    (container,) = pod["spec"]["containers"]
    assert container["envFrom"] == [{"prefix": labels.API_KEY_ENV_PREFIX, "secretRef": {"name": "keys"}}]
    assert "--api-key" not in container["args"]
    # A Secret without entries must not open the service.
    assert "--require-api-key" in container["args"]
    assert "--require-api-key" not in _pod(_service())["spec"]["containers"][0]["args"]


def test_a_chat_template_is_mounted_where_the_engine_is_told_to_look() -> None:
    engine = {
        "device": "cpu",
        "kvCache": {"size": "1Gi"},
        "chatTemplate": {"configMapKeyRef": {"name": "c", "key": "k"}},
    }
    spec = _pod(_service(engine=engine))["spec"]
    (container,) = spec["containers"]
    mount = container["volumeMounts"][-1]
    (item,) = spec["volumes"][-1]["configMap"]["items"]
    assert item["key"] == "k"
    assert Launch.parse(container["args"]).chat_template == f"{mount['mountPath']}/{item['path']}"


def test_resources_are_the_users_and_nothing_when_none_are_given() -> None:
    given_resources = {"requests": {"cpu": "1"}, "limits": {}}
    (container,) = _pod(_service(resources=given_resources))["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "1"}}
    (container,) = _pod(_service())["spec"]["containers"]
    assert "resources" not in container


def _live(service: InferenceService, image: str) -> dict[str, Any]:
    choices = render.Choices(replicas=1, wanted=1, image=image, fetch_image="f", max_surge=1, max_unavailable=0)
    return _deployment(service, choices)


@pytest.mark.parametrize(
    ("live", "now", "expected"),
    [
        (None, _service(), "engine:2"),
        (_live(_service(), "engine:1"), _service(), "engine:1"),
        (_live(_service(), "engine:1"), _service(generation=2, replicas=7), "engine:1"),
        (_live(_service(), "engine:1"), _service(generation=2, model={"uri": "pkg://other"}), "engine:2"),
        (_live(_service(), "engine:1"), _service(engine={"image": "mine:3", "device": "auto"}), "mine:3"),
        ({"metadata": {}}, _service(), "engine:2"),
    ],
    ids=["first", "same", "scaled", "changed", "users-own", "bare"],
)
def test_the_image_stays_until_the_user_changes_model_or_engine(
    live: dict[str, Any] | None, now: InferenceService, expected: str
) -> None:
    assert render.pinned_image(now, live, "engine:2") == expected


def test_what_the_user_leaves_out_is_not_in_the_digest_so_a_later_operators_defaults_are_not_either() -> None:
    service = _service()
    with_defaults = InferenceService.model_validate(service.model_dump())
    assert with_defaults == service
    digests = {_deployment(each)["metadata"]["annotations"][ENGINE_DIGEST] for each in (service, with_defaults)}
    assert len(digests) == 2


def test_an_image_that_somebody_set_on_the_deployment_is_no_pin() -> None:
    live = _live(_service(), "engine:1")
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "somebodys:9"
    assert render.pinned_image(_service(), live, "engine:2") == "engine:1"
    assert live["metadata"]["annotations"][ENGINE_IMAGE] == "engine:1"
    assert len(live["metadata"]["annotations"][ENGINE_DIGEST]) == 16


def test_the_planned_number_is_always_written() -> None:
    for replicas in (0, 1, 5):
        choices = render.Choices(
            replicas=replicas, wanted=replicas, image="e", fetch_image="f", max_surge=1, max_unavailable=0
        )
        assert _deployment(_service(), choices)["spec"]["replicas"] == replicas


def _budgets(wanted: int) -> list[dict[str, Any]]:
    choices = render.Choices(
        replicas=wanted + 3, wanted=wanted, image="e", fetch_image="f", max_surge=1, max_unavailable=0
    )
    manifests = render.manifests(_service(), choices)
    return [manifest["spec"] for manifest in manifests if manifest["kind"] == "PodDisruptionBudget"]


def test_evictions_take_one_serving_pod_at_a_time_and_are_never_forbidden_for_ever() -> None:
    assert _budgets(0) == _budgets(1) == []
    (budget,) = _budgets(5)
    assert budget["minAvailable"] == 4
    assert budget["selector"]["matchLabels"] == {**labels.selector("s"), labels.SERVING: labels.SERVING_TRUE}
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize(
    ("timeout_s", "serves_through_lag", "grace_s", "lifecycle"),
    [
        (600, True, 615, None),
        (0, True, 15, None),
        (600, False, 620, {"preStop": {"sleep": {"seconds": 5}}}),
    ],
)
def test_the_kubelets_grace_and_hook_follow_from_the_drains_time(
    timeout_s: int, serves_through_lag: bool, grace_s: int, lifecycle: dict[str, Any] | None
) -> None:
    drain = Drain(timeout_seconds=timeout_s)
    assert leaving(drain, serves_through_lag=serves_through_lag) == (grace_s, lifecycle)


def test_who_rehearses_with_a_paced_engine_is_told_that_nothing_is_computed() -> None:
    service = _service(engine={"device": "paced"})
    assert any("paced: the answers are random" in words for words in render.warnings(service))
    container = _pod(service)["spec"]["containers"][0]
    assert Launch.parse(container["args"]).device == "paced"
    assert "nvidia.com/gpu" not in container.get("resources", {}).get("limits", {})
