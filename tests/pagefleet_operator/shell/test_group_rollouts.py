"""What an operator that begins anew knows of a roll-out of groups."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_operator.reconciling import reconcile
from tests.pagefleet_operator.shell.bench import KEY, Bench
from tests.pagefleet_operator.shell.test_prefetching import conditions

_MODEL = {"uri": "file:///m"}
_ENGINE = {"runtime": "vllm", "image": "v", "device": "cuda", "parallelism": {"pipeline": 2}}


def _live(bench: Bench) -> dict[str, Any]:
    (found,) = (body for child, body in bench.cache.children(KEY).items() if child.kind == "LeaderWorkerSet")
    return dict(found)


def _digest(bench: Bench) -> str:
    return str(_live(bench)["metadata"]["annotations"][labels.TEMPLATE])


def _pod(bench: Bench, place: int, *, ready: bool) -> None:
    """A pod of the only group; the leader is at 0."""
    bench.pod("s-groups-0" if place == 0 else f"s-groups-0-{place}", ready=ready)
    body = bench.server.objects["s-groups-0" if place == 0 else f"s-groups-0-{place}"]
    bench.server.version += 1
    meta = body["metadata"]
    mine = meta["labels"] if place == 0 else {labels.GROUP_OF: "s"}
    meta |= {
        "resourceVersion": str(bench.server.version),
        "labels": {**mine, labels.GROUP_INDEX: "0"},
        "annotations": {labels.TEMPLATE: _digest(bench)},
        "creationTimestamp": (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    bench.cache.put("Pod", body)


async def test_a_pod_that_is_missing_for_long_is_looked_for_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.service(model=_MODEL, engine=_ENGINE)
    await bench.passes(2)
    assert min(delay_s for _, delay_s in bench.again) == 2
    monkeypatch.setattr(reconcile, "_CREATING_SOON", timedelta(0))
    bench.again.clear()
    await bench.passes()
    assert min(delay_s for _, delay_s in bench.again) == 10
    for place in (0, 1):
        _pod(bench, place, ready=True)
    await bench.passes()
    monkeypatch.undo()
    bench.cache.drop("Pod", "uid s-groups-0-1")
    bench.again.clear()
    await bench.passes()
    assert min(delay_s for _, delay_s in bench.again) == 2, "another one is missing"


async def test_a_group_that_fails_after_a_complete_roll_out_is_not_late_for_the_next_operator() -> None:
    bench = Bench()
    bench.service(model=_MODEL, engine=_ENGINE)
    await bench.passes(2)
    assert labels.COMPLETE not in _live(bench)["metadata"]["annotations"]
    for place in (0, 1):
        _pod(bench, place, ready=True)
    await bench.passes()
    assert _live(bench)["metadata"]["annotations"][labels.COMPLETE] == _digest(bench)
    _pod(bench, 0, ready=False)
    bench.begin_anew()
    await bench.passes()
    assert conditions(bench).get("Stalled", ("False", ""))[0] == "False", conditions(bench).get("Stalled")
    bench.service(900, model=_MODEL, engine={**_ENGINE, "image": "w"})
    await bench.passes(2)
    assert labels.COMPLETE not in _live(bench)["metadata"]["annotations"], "of another template it is not known"


@pytest.mark.parametrize(("pool", "left"), [("full", 2), ("none", 4)])
async def test_pods_make_room_for_groups_only_where_a_node_could_take_these(pool: str, left: int) -> None:
    bench = Bench()
    info = {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    bench.server.nodes = [{"metadata": {"name": "a", "labels": {"pool": "full"}}, "status": info}]
    rollout = {"maxSurge": 0}
    one = {**_ENGINE, "parallelism": {"pipeline": 1}}
    bench.service(model=_MODEL, engine=one, replicas=4, rollout=rollout)
    await bench.passes(2)
    for name in ("s-a", "s-b", "s-c", "s-d"):
        bench.pod(name)
    eight = {**_ENGINE, "parallelism": {"pipeline": 2, "tensor": 8}}
    there = {"spec": {"nodeSelector": {"pool": pool}}}
    bench.service(900, model=_MODEL, engine=eight, replicas=4, rollout=rollout, podTemplate=there)
    await bench.passes(3)
    (made,) = (body for child, body in bench.cache.children(KEY).items() if child.kind == "Deployment")
    assert (made["spec"]["replicas"], _live(bench)["spec"]["replicas"]) == (left, 1)
