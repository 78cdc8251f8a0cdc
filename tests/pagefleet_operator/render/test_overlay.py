"""spec.podTemplate in what is rendered. That it is merged as the API server merges is shown against one."""

import copy
import time
from typing import Any

import pytest

from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.render.overlay import merged
from pagefleet_operator.render.pod_security import loosened
from tests.pagefleet_operator.apiserver.overlays import OVERLAYS

_CHOICES = render.Choices(replicas=2, wanted=2, image="engine:1", fetch_image="f", max_surge=1, max_unavailable=0)
_ENGINE = {"device": "cuda", "parallelism": {"tensor": 2}, "apiKeysSecretRef": {"name": "keys"}}
_OWN = ("name", "image", "args", "resources", "ports", "envFrom", "lifecycle")

Json = dict[str, Any]


def _service(overlay: Json | None) -> InferenceService:
    spec = {"model": {"uri": "pkg://m"}, "engine": _ENGINE} | ({} if overlay is None else {"podTemplate": overlay})
    return InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": spec})


def _deployment(overlay: Json | None) -> Json:
    children = render.manifests(_service(overlay), _CHOICES)
    return next(child for child in children if child["kind"] == "Deployment")


def _template(overlay: Json | None) -> Json:
    template: Json = _deployment(overlay)["spec"]["template"]
    return template


def _engine(template: Json) -> Json:
    return next(container for container in template["spec"]["containers"] if container["name"] == "engine")


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_no_overlay_changes_what_the_operator_relies_on(name: str) -> None:
    plain, laid_over = _template(None), _template(OVERLAYS[name])
    assert plain["metadata"]["labels"].items() <= laid_over["metadata"]["labels"].items()
    assert [_engine(laid_over).get(field) for field in _OWN] == [_engine(plain).get(field) for field in _OWN]
    grace = "terminationGracePeriodSeconds"
    assert laid_over["spec"][grace] == plain["spec"][grace]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert _engine(laid_over)[probe]["httpGet"] == _engine(plain)[probe]["httpGet"]


def test_neither_the_template_nor_the_overlay_is_changed_by_merging() -> None:
    for overlay in OVERLAYS.values():
        template, patch = _template(None), copy.deepcopy(overlay)
        before = copy.deepcopy(template)
        merged(template, patch)
        assert (template, patch) == (before, overlay)


@pytest.mark.parametrize(
    ("original", "patch", "expected"),
    [
        ({"a": 1}, {"a": None, "b": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": None, "e": 3}}, {"a": {"e": 3}}),
        ({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {"a": {}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({}, {"a": {"$patch": "delete"}, "b": [{"$patch": "delete"}, {"c": None}]}, {"b": [{}]}),
        ({"a": 1, "b": 2}, {"$retainKeys": ["a"]}, {"a": 1}),
    ],
)
def test_maps_are_merged_field_by_field_and_other_lists_replaced(original: Json, patch: Json, expected: Json) -> None:
    assert merged(original, patch) == expected


@pytest.mark.parametrize(
    ("original", "patch", "order"),
    [
        ("a b c", [{"name": "d"}], "d a b c"),
        ("a b c", [{"name": "c"}, {"name": "a"}], "b c a"),
        ("a b c", [{"name": "b"}, {"name": "d"}], "a b d c"),
        ("a b c", [{"name": "b", "$patch": "delete"}], "a c"),
        ("a b c", [{"$patch": "replace"}, {"name": "d"}], "d"),
        ("a", [{"name": "d", "x": 1}, {"name": "d", "y": 2}], "d a"),
    ],
)
def test_lists_are_merged_by_key_in_the_order_that_the_api_server_gives(
    original: str, patch: list[Json], order: str
) -> None:
    template = {"spec": {"volumes": [{"name": name} for name in original.split()]}}
    volumes = merged(template, {"spec": {"volumes": patch}})["spec"]["volumes"]
    assert " ".join(volume["name"] for volume in volumes) == order


def _many(first: Json, **rest: Any) -> list[Json]:
    return [first, *({"name": f"v{number}", **rest} for number in range(12_000))]


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(_many({"name": "a"}, **{"$patch": "delete"}), id="deleted ones"),
        pytest.param(
            [{"name": "a", **dict.fromkeys(names := [f"x{n}" for n in range(12_000)], 1)}] * 2
            + [{"name": "a", "$retainKeys": names}],
            id="names that are kept",
        ),
    ],
)
def test_thousands_of_items_are_merged_in_the_time_of_their_number(patch: list[Json]) -> None:
    template = {"spec": {"volumes": _many({"name": "a"})}}
    begun_s = time.process_time()
    merged(template, {"spec": {"volumes": patch}})
    assert (took_s := time.process_time() - begun_s) < 0.5, f"{took_s:.2f} s of CPU"


def test_a_pod_with_more_containers_shows_the_engines_log_by_default() -> None:
    note = "kubectl.kubernetes.io/default-container"
    sidecar = _template(OVERLAYS["sidecar"])
    assert [container["name"] for container in sidecar["spec"]["containers"]] == ["sidecar", "engine"]
    assert sidecar["metadata"]["annotations"] == {note: "engine"}
    chosen = {**OVERLAYS["sidecar"], "metadata": {"annotations": {note: "sidecar"}}}
    assert _template(chosen)["metadata"]["annotations"] == {note: "sidecar"}
    assert "annotations" not in _template(OVERLAYS["node selector"])["metadata"]


def test_defaults_inside_values_that_are_owned_as_a_whole_are_rendered() -> None:
    variables = _engine(_template(OVERLAYS["variable from the pod"]))["env"]
    assert {"fieldPath": "status.podIP", "apiVersion": "v1"} in [
        v.get("valueFrom", {}).get("fieldRef") for v in variables
    ]
    (volume,) = [v for v in _template(OVERLAYS["projected token"])["spec"]["volumes"] if "projected" in v]
    assert volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600


def test_the_image_stays_pinned_until_the_overlay_changes() -> None:
    live = _deployment(OVERLAYS["node selector"])
    assert render.pinned_image(_service(OVERLAYS["node selector"]), live, "engine:2") == "engine:1"
    assert render.pinned_image(_service(OVERLAYS["sidecar"]), live, "engine:2") == "engine:2"


@pytest.mark.parametrize(
    ("overlay", "fields"),
    [
        (None, ()),
        (OVERLAYS["volume and mount"], ()),
        (OVERLAYS["writable root"], ()),
        (OVERLAYS["host network"], ("hostNetwork", "hostIPC")),
        (OVERLAYS["host path in place of tmp"], ("volumes[tmp].hostPath",)),
        (OVERLAYS["capability"], ("containers[engine].securityContext.capabilities.add",)),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, ("securityContext.runAsUser: 0",)),
        (
            {"spec": {"containers": [{"name": "engine", "securityContext": {"runAsUser": 0, "privileged": True}}]}},
            ("containers[engine].securityContext.privileged", "containers[engine].securityContext.runAsUser: 0"),
        ),
        (
            {"spec": {"initContainers": [{"name": "i", "image": "i", "ports": [{"containerPort": 1, "hostPort": 2}]}]}},
            (
                "initContainers[i].securityContext.allowPrivilegeEscalation is not false",
                "initContainers[i].securityContext.capabilities.drop has no ALL",
                "initContainers[i].ports.hostPort",
            ),
        ),
        (
            OVERLAYS["security deleted"],
            ("containers[engine].securityContext.seccompProfile",),
        ),
        (
            {"spec": {"securityContext": {"seccompProfile": {"type": ["RuntimeDefault"]}}}},
            ("containers[engine].securityContext.seccompProfile",),
        ),
        (
            {
                "spec": {
                    "containers": [{"name": "engine", "securityContext": {"runAsNonRoot": None}}],
                    "securityContext": {"runAsNonRoot": False},
                }
            },
            ("containers[engine].securityContext.runAsNonRoot is not true",),
        ),
    ],
)
def test_what_leaves_the_restricted_standard_is_said(overlay: Json | None, fields: tuple[str, ...]) -> None:
    assert loosened(_template(overlay)) == fields
    (*_, words) = ("", *render.warnings(_service(overlay)))
    assert all(field in words for field in fields)
    assert bool(words) == bool(fields)
