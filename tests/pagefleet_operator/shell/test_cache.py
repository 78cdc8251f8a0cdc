"""The watch cache: the newest version wins, and what is gone stays gone."""

from typing import Any

from pagefleet_api import labels
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.facts.observed import ChildKey

_KEY = ServiceKey("n", "s")


def _body(name: str, uid: str, version: int, **extra: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version), **extra}}


def _pod(name: str, version: int, child_name: str | None = "s") -> dict[str, Any]:
    pod_labels = {} if child_name is None else {labels.SERVICE: child_name}
    return _body(name, f"uid-{name}", version, labels=pod_labels)


def _cache() -> WatchCache:
    cache = WatchCache()
    cache.put(labels.KIND, _body("s", "u", 1))
    return cache


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = _cache()
    cache.put("Deployment", {**_body("s", "d", 9), "spec": "new"})
    cache.put("Deployment", {**_body("s", "d", 7), "spec": "old"})
    assert cache.children(_KEY)[ChildKey("Deployment", "s")]["spec"] == "new"


def test_versions_are_compared_as_numbers() -> None:
    cache = _cache()
    cache.put("Deployment", {**_body("s", "d", 99), "spec": "old"})
    cache.put("Deployment", {**_body("s", "d", 100), "spec": "new"})
    assert cache.children(_KEY)[ChildKey("Deployment", "s")]["spec"] == "new"


def test_an_answer_to_a_write_that_comes_after_the_end_does_not_bring_the_object_back() -> None:
    cache = _cache()
    cache.put("Pod", _pod("a", 5))
    cache.drop("Pod", "uid-a", _pod("a", 8))
    cache.put("Pod", _pod("a", 7))
    assert cache.pods(_KEY) == ()


def test_a_pod_that_lost_our_label_and_got_it_again_is_back() -> None:
    cache = _cache()
    cache.put("Pod", _pod("a", 5))
    cache.drop("Pod", "uid-a", _pod("a", 8))
    cache.put("Pod", _pod("a", 9))
    assert [pod.name for pod in cache.pods(_KEY)] == ["a"]


def test_pods_are_found_by_their_service_label_and_come_by_name() -> None:
    cache = _cache()
    for name in ("b", "a"):
        cache.put("Pod", _pod(name, 1))
    cache.put("Pod", _pod("stranger", 1, "other"))
    cache.put("Pod", _pod("nobodys", 1, None))
    assert [pod.name for pod in cache.pods(_KEY)] == ["a", "b"]
    assert "uid-nobodys" in cache.uids("Pod")
    assert cache.owners("Pod", "uid-nobodys") == ()


def test_a_pod_whose_label_changes_moves() -> None:
    cache = _cache()
    cache.put("Pod", _pod("a", 1))
    cache.put("Pod", _pod("a", 2, "other"))
    assert cache.pods(_KEY) == ()


def test_every_child_and_pod_names_its_service_even_one_with_a_long_name() -> None:
    long = "x" * 100
    cache = WatchCache()
    cache.put(labels.KIND, _body(long, "u", 1))
    cache.put("Service", _body(labels.child_name(long), "svc", 1))
    cache.put("Pod", _pod("p", 1, labels.child_name(long)))
    assert cache.owners("Service", "svc") == cache.owners("Pod", "uid-p") == (ServiceKey("n", long),)
    assert cache.owners(labels.KIND, "u") == (ServiceKey("n", long),)


def test_a_recreated_service_of_the_same_name_is_the_one_that_is_found() -> None:
    cache = _cache()
    cache.drop(labels.KIND, "u", _body("s", "u", 3))
    assert cache.service(_KEY) is None
    cache.put(labels.KIND, _body("s", "u2", 4))
    found = cache.service(_KEY)
    assert found is not None
    assert found["metadata"]["uid"] == "u2"
    assert cache.services() == [_KEY]


def test_dropping_what_was_never_known_is_harmless() -> None:
    cache = _cache()
    cache.drop("Pod", "nobody")
    assert cache.pods(_KEY) == ()
    assert cache.owners("Pod", "nobody") == ()


def test_the_memory_of_what_is_gone_is_bounded() -> None:
    cache = WatchCache()
    for number in range(10_050):
        cache.drop("Pod", str(number), _pod(str(number), 1))
    assert len(cache._gone) == 10_000


def test_templates_are_those_of_the_services_own_deployment_in_the_order_of_their_revisions() -> None:
    cache = _cache()
    cache.put("Deployment", _body("s", "d", 1))
    for version, (name, owner, revision) in enumerate((("s-2", "d", 2), ("s-1", "d", 1), ("s-0", "elsewhere", 3))):
        meta = {
            "labels": {labels.SERVICE: "s"},
            "annotations": {"deployment.kubernetes.io/revision": str(revision)},
            "ownerReferences": [{"uid": owner, "controller": True}],
        }
        template = {"metadata": {"labels": {"pod-template-hash": name}}}
        cache.put("ReplicaSet", {**_body(name, name, version + 2, **meta), "spec": {"template": template}})
    assert [each.template_hash for each in cache.generations(_KEY)] == ["s-1", "s-2"]
    assert cache.owners("ReplicaSet", "s-1") == (_KEY,)
    assert cache.generations(ServiceKey("n", "other")) == ()


def test_a_service_is_in_groups_by_its_spec_or_by_the_pods_that_it_has() -> None:
    cache, key = WatchCache(), ServiceKey("n", "s")
    assert not cache.in_groups(key)
    cache.put(labels.KIND, _body("s", "u", 1))
    assert not cache.in_groups(key)
    cache.put("Pod", _pod("alone", 1))
    assert not cache.in_groups(key)
    leader = _pod("leader", 1)
    leader["metadata"]["labels"][labels.GROUP_INDEX] = "0"
    cache.put("Pod", leader)
    assert cache.in_groups(key)
    cache.drop("Pod", leader["metadata"]["uid"])
    worker = {"namespace": "n", "name": "w", "uid": "w", "labels": {labels.GROUP_OF: "s"}}
    cache.put("Pod", {"metadata": worker})
    assert cache.in_groups(key)
    cache.drop("Pod", "w")
    cache.put(labels.KIND, {**_body("s", "u", 2), "spec": {"engine": {"parallelism": {"pipeline": 2}}}})
    assert cache.in_groups(key)
