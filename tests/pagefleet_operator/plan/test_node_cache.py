"""What is decided about models on nodes."""

import time
from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.download import DownloadProgress
from pagefleet_operator.plan.node_cache import (
    Delete,
    Mark,
    Step,
    Write,
    leftovers,
    node_label,
    progress,
    steps_for,
    unsettled,
)
from pagefleet_operator.plan.nodes_seen import Bodies, ClaimKey, NodesSeen, Pods
from pagefleet_operator.plan.prefetch import Prefetch, Stage
from tests.pagefleet_operator.plan.nodes import going, made, model_of, node, pod, user

MODEL = model_of()
LABEL = node_label(MODEL.name)
SET, VOLUME, CLAIM = MODEL.daemon_set, MODEL.volumes["n"], MODEL.claims["n"]
KEY = ClaimKey("n", CLAIM["metadata"]["name"])
READY, WANTED = labels.NODE_MODEL_READY, labels.NODE_MODEL_WANTED
SETTLED = NodesSeen(
    nodes=[node("a", READY), node("b", READY)],
    daemon_sets=Bodies([made(SET)]),
    pods=Pods([pod("a", ready=True), pod("b", ready=True)]),
    volumes=Bodies([made(VOLUME)]),
    claims=Bodies([made(CLAIM)]),
    mounted={KEY},
)


def kinds(steps: list[Step]) -> list[str]:
    """Each step in a word or two."""
    said = []
    for step in steps:
        match step:
            case Write(manifest):
                said.append(f"write {manifest['kind']}")
            case Delete(kind, _):
                said.append(f"delete {kind}")
            case Mark(place, _, value):
                said.append(f"{place} {value}")
    return said


def bound(uid: str) -> dict[str, Any]:
    """The volume as it is bound to a claim."""
    claim = {**VOLUME["spec"]["claimRef"], "uid": uid}
    return made({**VOLUME, "spec": {**VOLUME["spec"], "claimRef": claim}})


def test_a_model_that_is_nowhere_gets_everything_and_nodes_are_asked_for_it() -> None:
    seen = NodesSeen(nodes=[node("a"), node("b")])
    wanted = ["write DaemonSet", "write PersistentVolume", "a wanted", "b wanted"]
    assert kinds(steps_for(MODEL, seen)) == wanted
    volume_is_there = replace(SETTLED, claims=Bodies([]))
    assert kinds(steps_for(MODEL, volume_is_there)) == ["write PersistentVolumeClaim"]


def test_nothing_is_written_once_all_is_as_it_should_be() -> None:
    assert steps_for(MODEL, SETTLED) == []
    assert leftovers({MODEL.name}, SETTLED) == {}
    assert not unsettled(SETTLED)


def test_a_node_says_ready_for_as_long_as_its_pod_is() -> None:
    seen = replace(SETTLED, nodes=[node("a", WANTED), node("b", READY)], pods=Pods([pod("a", ready=True), pod("b")]))
    assert steps_for(MODEL, seen) == [Mark("a", LABEL, READY), Mark("b", LABEL, WANTED)]
    assert unsettled(seen)


def test_a_node_that_no_pod_may_go_to_any_more_is_let_go() -> None:
    placed = model_of(user(podTemplate={"spec": {"nodeSelector": {"kubernetes.io/hostname": "a"}}}))
    assert Mark("b", LABEL, None) in steps_for(placed, SETTLED)


def test_a_node_on_which_pods_read_the_model_keeps_it_whether_or_not_new_ones_may_go_there() -> None:
    placed = model_of(user(podTemplate={"spec": {"nodeSelector": {"kubernetes.io/hostname": "a"}}}))
    read = replace(SETTLED, readers={KEY: {"b"}})
    assert steps_for(placed, read) == []
    assert steps_for(placed, replace(read, pods=Pods([pod("a", ready=True)]))) == [Mark("b", LABEL, WANTED)]
    other = ClaimKey("n", "of another model")
    assert Mark("b", LABEL, None) in steps_for(placed, replace(SETTLED, readers={other: {"b"}}))


def test_another_image_or_place_of_the_download_changes_the_daemon_set() -> None:
    older = made({**SET, "metadata": {**SET["metadata"], "annotations": {labels.FETCH_DIGEST: "of before"}}})
    assert kinds(steps_for(MODEL, replace(SETTLED, daemon_sets=Bodies([older])))) == ["write DaemonSet"]
    assert steps_for(MODEL, replace(SETTLED, daemon_sets=Bodies([going(older)]))) == []


def test_another_namespace_gets_a_volume_and_a_claim_of_its_own() -> None:
    both = model_of(user(), user(namespace="m"))
    steps = steps_for(both, SETTLED)
    assert both.name == MODEL.name
    assert steps == [Write(both.volumes["m"])]
    later = replace(SETTLED, volumes=Bodies([made(VOLUME), made(both.volumes["m"])]))
    assert steps_for(both, later) == [Write(both.claims["m"])]


def test_a_second_service_of_a_namespace_owns_the_claim_too() -> None:
    both = model_of(user(), user("t"))
    assert steps_for(both, SETTLED) == [Write(both.claims["n"])]


@pytest.mark.parametrize("claims", [[], [made(CLAIM, "another")]])
def test_a_volume_whose_claim_was_removed_is_made_anew(claims: list[dict[str, Any]]) -> None:
    seen = replace(SETTLED, volumes=Bodies([bound("u")]), claims=Bodies(claims))
    assert kinds(steps_for(MODEL, seen)) == ["delete PersistentVolume"]
    assert steps_for(MODEL, replace(seen, volumes=Bodies([going(bound("u"))]))) == []
    assert steps_for(MODEL, replace(SETTLED, volumes=Bodies([bound("u")]))) == []


def test_a_claim_on_its_way_out_is_waited_for() -> None:
    assert steps_for(MODEL, replace(SETTLED, claims=Bodies([going(made(CLAIM))]))) == []


def test_what_one_namespace_no_longer_wants_goes_while_another_has_it() -> None:
    other = model_of(user(namespace="m"))
    seen = replace(
        SETTLED,
        volumes=Bodies([made(VOLUME), made(other.volumes["m"])]),
        claims=Bodies([made(CLAIM), made(other.claims["m"])]),
    )
    assert steps_for(other, seen) == [], "pods of n mount it still"
    assert kinds(steps_for(other, replace(seen, mounted=()))) == ["delete PersistentVolumeClaim"]


def test_a_model_that_nobody_wants_goes_in_order() -> None:
    def leaving(seen: NodesSeen) -> list[str]:
        return kinds(leftovers((), seen)[MODEL.name])

    assert leaving(SETTLED) == [], "pods mount it still"
    unmounted = replace(SETTLED, mounted=())
    assert leaving(unmounted) == ["delete PersistentVolumeClaim"]
    assert leaving(replace(unmounted, claims=Bodies([going(made(CLAIM))]))) == []
    released = replace(unmounted, claims=Bodies([]))
    assert leaving(released) == ["delete PersistentVolume"]
    assert leaving(replace(released, volumes=Bodies([going(made(VOLUME))]))) == []
    gone = replace(released, volumes=Bodies([]))
    assert leaving(gone) == ["a None", "b None", "delete DaemonSet"]
    assert leaving(replace(gone, daemon_sets=Bodies([going(made(SET))]))) == ["a None", "b None"]
    assert leaving(replace(gone, daemon_sets=Bodies([]))) == ["a None", "b None"]


def test_a_claim_that_mounts_another_volume_is_not_ours_to_remove() -> None:
    foreign = {**CLAIM, "spec": {**CLAIM["spec"], "volumeName": "other"}}
    steps = leftovers((), replace(SETTLED, mounted=(), claims=Bodies([made(foreign)])))[MODEL.name]
    assert kinds(steps) == ["delete PersistentVolume"]


def test_other_labels_of_nodes_are_nobodys_model() -> None:
    assert leftovers((), NodesSeen(nodes=[node("a")])) == {}


def test_a_model_is_there_once_one_node_has_it_and_pods_can_mount_it() -> None:
    found = progress(MODEL, user(), SETTLED)
    assert (found.stage, found.message) == (Stage.CACHED, "it is on a, b of 2")
    assert progress(MODEL, user(), replace(SETTLED, claims=Bodies([]))).stage is Stage.FETCHING
    assert progress(MODEL, user(), replace(SETTLED, volumes=Bodies([]))).stage is Stage.FETCHING


def test_a_model_is_there_for_those_whose_pods_may_go_where_it_is() -> None:
    first, second = (
        user(name, podTemplate={"spec": {"nodeSelector": {"kubernetes.io/hostname": place}}})
        for name, place in (("s", "a"), ("t", "b"))
    )
    both = model_of(first, second)
    seen = replace(SETTLED, nodes=[node("a", READY), node("b", WANTED)], pods=Pods([pod("a", ready=True), pod("b")]))
    assert progress(both, first, seen) == Prefetch(Stage.CACHED, "it is on a of 1")
    late = progress(both, second, seen)
    assert late.stage is Stage.FETCHING and "fetches it on b; " in late.message
    failing = replace(seen, pods=Pods([pod("a", ready=True), pod("b", failure="no space")]))
    assert progress(both, first, failing).message == "it is on a of 1"
    assert progress(both, second, failing).stage is Stage.FAILING


@pytest.mark.parametrize(
    "seen",
    [replace(SETTLED, claims=Bodies([going(made(CLAIM))])), replace(SETTLED, volumes=Bodies([going(made(VOLUME))]))],
)
def test_what_is_on_its_way_out_cannot_be_mounted_any_more(seen: NodesSeen) -> None:
    found = progress(MODEL, user(), seen)
    assert found.stage is Stage.FETCHING
    assert found.message == f"its claim {KEY.name} is on its way out, and made anew once no pod of n mounts it"


def test_the_node_that_cannot_get_it_is_named_while_others_have_it() -> None:
    seen = replace(SETTLED, nodes=[node("a", READY), node("b", WANTED)], pods=Pods([pod("b", failure="no space")]))
    found = progress(MODEL, user(), seen)
    assert found.stage is Stage.CACHED
    assert found.message.startswith(f"it is on a of 2; DaemonSet system/{MODEL.name} on b: ")
    assert found.message.endswith("no space")


def test_a_download_that_fails_everywhere_is_told_with_its_words() -> None:
    seen = replace(SETTLED, nodes=[node("a", WANTED)], pods=Pods([pod("a", failure="HTTP 401")]))
    found = progress(MODEL, user(), seen)
    assert found.stage is Stage.FAILING
    assert "HTTP 401" in found.message


def test_how_far_the_furthest_node_is() -> None:
    nodes = [node("a", WANTED), node("b", WANTED)]
    seen = replace(SETTLED, nodes=nodes, pods=Pods([pod("a"), pod("b")]))
    words = f"DaemonSet system/{MODEL.name} fetches it on a, b; "
    look = f"kubectl logs -n system -l pagefleet.io/model={MODEL.name} --prefix tells how far"
    assert progress(MODEL, user(), seen).message == words + look
    told = {f"p-{place}": DownloadProgress(bytes=count, total_bytes=100) for place, count in (("a", 10), ("b", 30))}
    found = progress(MODEL, user(), seen, told)
    assert (found.stage, found.message) == (Stage.FETCHING, f"{words}furthest is b: 30 of 100 bytes (30 %)")


def test_a_daemon_set_without_pods_is_to_be_looked_at() -> None:
    many = [node(name, WANTED) for name in "abcdef"]
    found = progress(MODEL, user(), replace(SETTLED, nodes=many, pods=Pods([])))
    assert found.stage is Stage.FETCHING
    assert f"is to fetch it on 6 nodes; kubectl describe daemonset -n system {MODEL.name}" in found.message


def test_a_place_that_no_node_has_is_named() -> None:
    placed = model_of(user(podTemplate={"spec": {"nodeSelector": {"zone": "z"}}}))
    assert "none of 2 nodes may hold it" in progress(placed, placed.users[0], SETTLED).message


def test_a_folder_that_the_chart_moved_is_told_with_the_way_out() -> None:
    moved = made({**VOLUME, "spec": {**VOLUME["spec"], "local": {"path": "/old/place"}}})
    found = progress(MODEL, user(), replace(SETTLED, volumes=Bodies([moved])))
    assert found.stage is Stage.FAILING
    assert "is at /old/place and the chart's nodeCache.path says /var/lib/models/" in found.message


def test_pods_on_their_way_out_or_without_a_node_hold_nothing() -> None:
    unplaced = {**pod("a", ready=True), "spec": {}}
    seen = replace(SETTLED, pods=Pods([going(pod("a", ready=True)), unplaced, pod("b", ready=True)]))
    assert steps_for(MODEL, seen) == [Mark("a", LABEL, WANTED)]


def test_what_there_is_is_found_in_a_time_that_does_not_grow_with_it() -> None:
    """Hundreds of models are looked at one after the other, several times each."""
    names = [f"m{number}" for number in range(300)]
    pods, volumes = [pod(str(place)) for place in range(10)], []
    for name in names:
        marks = {labels.MODEL: name}
        pods += [{**body, "metadata": {**body["metadata"], "labels": marks}} for body in pods[:10]]
        volumes += [{"metadata": {"name": f"{name}-{place}", "labels": marks}} for place in range(10)]
    seen = NodesSeen(pods=Pods(pods), volumes=Bodies(volumes))
    begun_s = time.process_time()
    for name in names * 5:
        assert (len(seen.pods.of(name)), len(seen.volumes_of(name))) == (10, 10)
        assert seen.volume(f"{name}-9") is seen.volumes_of(name)[9]
    assert (took_s := time.process_time() - begun_s) < 1.2, f"{took_s:.2f} s of CPU"
