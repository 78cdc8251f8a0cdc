import copy
import json
import time
from typing import Any

import pytest

from pagefleet_operator.facts.observed import ChildKey
from pagefleet_operator.plan.convergence import Apply, Conflict, Remove, Wait, obstacle, plan_children, up_to_date

OWNER = {
    "apiVersion": "pagefleet.io/v1alpha1",
    "kind": "InferenceService",
    "name": "llama",
    "uid": "owner",
    "controller": True,
    "blockOwnerDeletion": True,
}

RENDERED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "llama",
        "namespace": "team",
        "labels": {"app": "llama"},
        "annotations": {},
        "ownerReferences": [OWNER],
    },
    "spec": {
        "replicas": 2,
        "paused": None,
        "template": {
            "spec": {
                "nodeSelector": {"gpu": "yes"},
                "containers": [
                    {
                        "name": "engine",
                        "image": "engine:1",
                        "args": ["--port", "8000"],
                        "ports": [{"containerPort": 8000, "name": "http"}],
                        "resources": {"requests": {"cpu": "1000m"}, "limits": {"memory": "1024Mi"}},
                        "securityContext": {"capabilities": {"drop": ["ALL"]}},
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "0.5Gi"}}],
            }
        },
    },
}

TREE: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:app": {}}, "f:ownerReferences": {'k:{"uid":"owner"}': {}}},
    "f:spec": {
        "f:replicas": {},
        "f:template": {
            "f:spec": {
                "f:nodeSelector": {},
                "f:containers": {
                    'k:{"name":"engine"}': {
                        ".": {},
                        "f:name": {},
                        "f:image": {},
                        "f:args": {},
                        "f:ports": {
                            'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}, "f:name": {}}
                        },
                        "f:resources": {"f:requests": {"f:cpu": {}}, "f:limits": {"f:memory": {}}},
                        "f:securityContext": {"f:capabilities": {"f:drop": {}}},
                    }
                },
                "f:volumes": {'k:{"name":"tmp"}': {".": {}, "f:name": {}, "f:emptyDir": {"f:sizeLimit": {}}}},
            }
        },
    },
}


def live_object() -> Any:
    """What the API server makes of RENDERED: defaults, other people's fields, canonical quantities."""
    live = copy.deepcopy(RENDERED)
    meta, spec = live["metadata"], live["spec"]
    del meta["annotations"], spec["paused"]
    meta |= {"uid": "d", "generation": 1, "annotations": {"deployment.kubernetes.io/revision": "1"}}
    meta["labels"]["team"] = "theirs"
    spec["progressDeadlineSeconds"] = 600
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    container["imagePullPolicy"] = "IfNotPresent"
    container["ports"][0]["protocol"] = "TCP"
    container["resources"] = {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}
    pod["containers"].append({"name": "sidecar", "image": "theirs"})
    pod["volumes"][0]["emptyDir"]["sizeLimit"] = "512Mi"
    meta["managedFields"] = [
        {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "fieldsV1": {"f:x": {}}},
        {"manager": "pagefleet", "operation": "Update", "fieldsV1": {"f:metadata": {}}},
        {"manager": "pagefleet", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": "pagefleet", "operation": "Apply", "fieldsV1": copy.deepcopy(TREE)},
    ]
    return live


def ours(live: Any) -> Any:
    return live["metadata"]["managedFields"][-1]["fieldsV1"]


def pod_spec(live: Any) -> Any:
    return live["spec"]["template"]["spec"]


def container(live: Any) -> Any:
    return pod_spec(live)["containers"][0]


def test_what_others_add_and_the_server_fills_in_needs_no_write() -> None:
    assert up_to_date(RENDERED, live_object())


def drop_tree(live: Any) -> None:
    live["metadata"]["managedFields"].pop()


@pytest.mark.parametrize(
    "drift",
    [
        pytest.param(lambda live: live["spec"].update(replicas=5), id="a number"),
        pytest.param(lambda live: live["metadata"]["labels"].pop("app"), id="a label taken away"),
        pytest.param(lambda live: container(live).update(image="engine:2"), id="an image"),
        pytest.param(lambda live: container(live)["args"].append("--x"), id="one more argument"),
        pytest.param(lambda live: container(live)["args"].reverse(), id="the order of arguments"),
        pytest.param(lambda live: container(live)["ports"].clear(), id="a port taken away"),
        pytest.param(lambda live: container(live)["ports"][0].update(name="web"), id="a port's name"),
        pytest.param(lambda live: container(live)["resources"]["limits"].update(memory="2Gi"), id="a quantity"),
        pytest.param(lambda live: container(live)["resources"]["limits"].update(memory="much"), id="no quantity"),
        pytest.param(lambda live: container(live).pop("resources"), id="a map taken away"),
        pytest.param(
            lambda live: live["spec"]["template"]["spec"]["nodeSelector"].update(zone="a"), id="an atomic map"
        ),
        pytest.param(lambda live: live["metadata"]["ownerReferences"][0].update(controller=False), id="an owner"),
        pytest.param(lambda live: ours(live)["f:spec"].pop("f:replicas"), id="a field that another took over"),
        pytest.param(lambda live: ours(live)["f:spec"].update({"f:paused": {}}), id="a field that is not rendered now"),
        pytest.param(
            lambda live: ours(live)["f:spec"]["f:template"]["f:spec"]["f:containers"].update(
                {'k:{"name":"old"}': {".": {}}}
            ),
            id="an item that is not rendered now",
        ),
        pytest.param(drop_tree, id="never applied by us"),
    ],
)
def test_each_drift_of_ours_is_seen(drift: Any) -> None:
    live = live_object()
    drift(live)
    assert not up_to_date(RENDERED, live)


def test_an_item_under_another_key_is_seen() -> None:
    live = live_object()
    manifest = copy.deepcopy(RENDERED)
    manifest["spec"]["template"]["spec"]["volumes"][0]["name"] = "cache"
    assert not up_to_date(manifest, live)


def applied(rendered: Any, live: Any, tree: Any) -> bool:
    body = {
        "metadata": {"managedFields": [{"manager": "pagefleet", "operation": "Apply", "fieldsV1": {"f:x": tree}}]},
        "x": live,
    }
    return up_to_date({"kind": "K", "metadata": {"name": "n"}, "x": rendered}, body)


def test_members_of_a_set_are_compared_as_a_set() -> None:
    tree: dict[str, Any] = {'v:"a"': {}, 'v:"b"': {}}
    assert applied(["a", "b"], ["z", "b", "a"], tree)
    assert not applied(["a", "c"], ["a", "c", "b"], tree)
    assert not applied(["a", "b"], ["a"], tree)


def test_an_empty_value_is_an_absent_one() -> None:
    assert applied({"y": {}}, {}, {"f:y": {}})
    assert applied({"a": 1, "y": []}, {"a": 1}, {"f:a": {}})
    assert applied({"y": {}}, {"y": {"theirs": 1}}, {"f:y": {}})
    assert not applied({"y": {}}, {"y": {"ours": 1}}, {"f:y": {"f:ours": {}}})
    assert not applied({"a": 1, "y": [1]}, {"a": 1}, {"f:a": {}})


def test_atomic_lists_of_maps_are_compared_as_a_whole() -> None:
    assert applied([{"a": 1, "b": None}], [{"a": 1}], {})
    assert not applied([{"a": 1}], [{"a": 2}], {})
    assert not applied([{"a": 1}], [{"a": 1}, {"a": 2}], {})


KEY = ChildKey("Deployment", "llama")


def test_only_what_differs_is_applied_in_the_order_of_rendering() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "llama"}}
    assert plan_children([service, RENDERED], {KEY: live_object()}) == (Apply(service),)
    assert plan_children([service, RENDERED], {}) == (Apply(service), Apply(RENDERED))
    drifted = live_object()
    drifted["spec"]["replicas"] = 7
    assert plan_children([RENDERED], {KEY: drifted}) == (Apply(RENDERED),)


def test_a_child_that_is_being_deleted_is_waited_for() -> None:
    live = live_object()
    live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    live["spec"]["replicas"] = 9
    words = "Deployment llama is being deleted; it is made again when it is gone"
    assert plan_children([RENDERED], {KEY: live}) == (Wait(KEY, words),)


def test_a_child_of_an_earlier_service_of_that_name_is_waited_for() -> None:
    live = live_object()
    live["metadata"]["ownerReferences"] = [{**OWNER, "uid": "predecessor", "apiVersion": "pagefleet.io/v1"}]
    words = "Deployment llama is left of an earlier service of this name; it is made again when it is gone"
    assert plan_children([RENDERED], {KEY: live}) == (Wait(KEY, words),)
    assert obstacle(RENDERED, live_object()) is None


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([], "it belongs to no controller"),
        ([{**OWNER, "controller": False}], "it belongs to no controller"),
        ([{**OWNER, "uid": "x", "name": "other"}], "InferenceService other controls it"),
        ([{**OWNER, "uid": "x", "apiVersion": "example.org/v1"}], "InferenceService llama controls it"),
        ([{**OWNER, "uid": "x", "kind": "Website"}], "Website llama controls it"),
    ],
)
def test_an_object_of_someone_else_is_never_taken_over(owners: list[Any], words: str) -> None:
    live = live_object()
    live["metadata"]["ownerReferences"] = owners
    assert plan_children([RENDERED], {KEY: live}) == (
        Conflict(KEY, f"Deployment llama exists and is not ours ({words}); delete it or rename the service"),
    )


BUDGET = ChildKey("PodDisruptionBudget", "llama")


def no_tree(live: Any) -> None:
    live["metadata"]["managedFields"] = []


def test_a_child_that_is_no_longer_rendered_goes_after_the_others_were_written() -> None:
    service = {"kind": "Service", "metadata": {"name": "llama"}}
    live = {KEY: live_object(), BUDGET: live_object()}
    assert plan_children([service, RENDERED], live) == (Apply(service), Remove(BUDGET, live[BUDGET]))
    assert plan_children([RENDERED], {KEY: live_object()}) == ()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(no_tree, id="never applied by us"),
        pytest.param(lambda live: live["metadata"].update(ownerReferences=[]), id="without a controller"),
        pytest.param(lambda live: live["metadata"].update(ownerReferences=[{**OWNER, "uid": "x"}]), id="of another"),
        pytest.param(lambda live: live["metadata"].update(deletionTimestamp="now"), id="on its way out"),
    ],
)
def test_what_is_not_ours_or_goes_already_is_not_removed(change: Any) -> None:
    live = live_object()
    change(live)
    assert plan_children([RENDERED], {KEY: live_object(), BUDGET: live}) == ()


@pytest.mark.parametrize("zero", ["", False, 0])
def test_a_zero_that_the_api_server_leaves_out_is_what_was_rendered(zero: Any) -> None:
    rendered, live = copy.deepcopy(RENDERED), live_object()
    rendered["spec"]["template"]["spec"]["hostNetwork"] = zero
    assert not up_to_date(rendered, live), "it was never applied"
    ours(live)["f:spec"]["f:template"]["f:spec"]["f:hostNetwork"] = {}
    assert up_to_date(rendered, live)
    pod_spec(live)["hostNetwork"] = True
    assert not up_to_date(rendered, live)


def _port(number: Any, **more: Any) -> Any:
    return {"containerPort": number, **more}


def _key(**keys: Any) -> str:
    return f"k:{json.dumps(keys)}"


def test_an_item_that_leaves_a_key_out_is_not_taken_for_one_that_has_another() -> None:
    live = [_port(53, protocol="TCP", name="tcp"), _port(53, protocol="UDP", name="udp")]
    fields: Any = {".": {}, "f:containerPort": {}, "f:name": {}}
    tree = {_key(containerPort=53, protocol=each): fields for each in ("TCP", "UDP")}
    assert applied([_port(53, name="tcp"), _port(53, protocol="UDP", name="udp")], live, tree)
    assert not applied([_port(53, name="tcp"), _port(53, protocol="UDP", name="other")], live, tree)


@pytest.mark.parametrize("item", ["no object", _port(53, protocol={"a": 1}), _port([53])])
def test_an_item_that_no_api_server_takes_is_none_of_the_live_ones(item: Any) -> None:
    assert not applied([item], [_port(53, protocol="TCP")], {_key(containerPort=53, protocol="TCP"): {}})


@pytest.mark.parametrize(
    "trees",
    [
        pytest.param([dict.fromkeys("abcde", 1)], id="more keys than any list has"),
        pytest.param([{"a": 1}, {"b": 1}], id="items of one list by different keys"),
    ],
)
def test_a_tree_that_no_api_server_made_is_written_anew(trees: list[Any]) -> None:
    assert not applied(trees, trees, {_key(**keys): {} for keys in trees})


def test_thousands_of_items_are_compared_in_the_time_of_their_number() -> None:
    items = [{"name": f"V{number}", "value": "x"} for number in range(4_000)]
    tree: Any = {_key(name=item["name"]): {".": {}, "f:name": {}, "f:value": {}} for item in items}
    members: Any = [f"m{number}" for number in range(10_000)]
    begun_s = time.process_time()
    assert applied(items, [*items], tree)
    assert applied(members, members[::-1], {f'v:"{member}"': {} for member in members})
    assert (took_s := time.process_time() - begun_s) < 1, f"{took_s:.2f} s of CPU"
