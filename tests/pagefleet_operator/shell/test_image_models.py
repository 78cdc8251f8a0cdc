"""How pods come to a model in an image: by a volume where every node can mount it, else by a copy; and it stays so."""

import asyncio
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator.apiserver.api_errors import Refused, Unavailable
from pagefleet_operator.kinds import NODE, Kind
from pagefleet_operator.models import image_nodes
from pagefleet_operator.models.image_nodes import ImageNodes
from tests.pagefleet_operator.shell.bench import Bench, Server
from tests.pagefleet_operator.shell.test_prefetching import ENGINE, conditions, deployments

_MODEL = {"uri": "oci://registry/m:1#weights"}


def _node(name: str, runtime: str = "containerd://2.1.4", **parts: Any) -> dict[str, Any]:
    info = {"kubeletVersion": "v1.35.0", "containerRuntimeVersion": runtime}
    return {"metadata": {"name": name, "labels": {"kind": name}}, "spec": parts, "status": {"nodeInfo": info}}


def _way(bench: Bench) -> tuple[bool, bool]:
    """Whether the latest Deployment mounts the image, and whether its pods copy it."""
    pod = deployments(bench)[-1]["template"]["spec"]
    copies = any(each["name"] == labels.COPY_CONTAINER for each in pod.get("initContainers", ()))
    return any("image" in volume for volume in pod["volumes"]), copies


_MOUNTED, _COPIED = (True, False), (False, True)


async def test_nodes_that_can_mount_it_do_and_one_that_comes_later_rolls_no_pod() -> None:
    bench = Bench()
    bench.server.nodes = [_node("a"), _node("b")]
    bench.service(model=_MODEL, engine=ENGINE)
    await bench.passes()
    assert deployments(bench)[-1]["replicas"] == 0, "the API server must have kept the volume"
    await bench.passes()
    assert (deployments(bench)[-1]["replicas"], _way(bench)) == (1, _MOUNTED)
    bench.server.nodes.append(_node("old", runtime="containerd://1.7.27"))
    before = deployments(bench)[-1]
    await bench.passes(3)
    assert deployments(bench)[-1] == before


async def test_a_node_that_cannot_mount_it_makes_copies_until_the_pods_are_changed() -> None:
    bench = Bench()
    bench.server.nodes = [_node("a"), _node("old", runtime="containerd://1.7.27")]
    bench.service(model=_MODEL, engine=ENGINE)
    await bench.passes(2)
    assert (deployments(bench)[-1]["replicas"], _way(bench)) == (1, _COPIED)
    bench.service(900, model=_MODEL, engine=ENGINE, podTemplate={"spec": {"nodeSelector": {"kind": "a"}}})
    await bench.passes(2)
    assert _way(bench) == _MOUNTED, "its pods go to no other node any more"


async def test_where_the_server_drops_the_volume_the_model_is_copied_and_no_pod_was_made_before() -> None:
    bench = Bench()
    bench.server.nodes, bench.server.drops_image_volumes = [_node("a")], True
    bench.service(model=_MODEL, engine=ENGINE)
    await bench.passes()
    assert deployments(bench)[-1]["replicas"] == 0
    await bench.passes(2)
    assert (deployments(bench)[-1]["replicas"], _way(bench)) == (1, _COPIED)
    before = deployments(bench)[-1]
    await bench.passes(3)
    assert deployments(bench)[-1] == before
    assert "Stalled" not in conditions(bench)


async def test_without_a_node_the_model_is_copied() -> None:
    bench = Bench()
    bench.service(model=_MODEL, engine=ENGINE)
    await bench.passes(2)
    assert _way(bench) == _COPIED


@pytest.mark.parametrize("everywhere", [True, False])
async def test_nodes_that_cannot_be_seen_are_not_trusted(everywhere: bool) -> None:
    class Nodes:
        async def items(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
            if everywhere:
                raise Refused("nodes is forbidden")
            return [_node("a")]

    meta = {"name": "s", "namespace": "n", "uid": "u"}
    service = InferenceService.parse({"metadata": meta, "spec": {"model": _MODEL, "engine": ENGINE}})
    assert not await ImageNodes(Nodes(), everywhere=everywhere).mount(service, None)


async def test_a_busy_api_server_decides_nothing() -> None:
    class Nodes:
        busy = True

        async def items(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
            if self.busy:
                raise Unavailable("later")
            return [_node("a")]

    meta = {"name": "s", "namespace": "n", "uid": "u"}
    service = InferenceService.parse({"metadata": meta, "spec": {"model": _MODEL, "engine": ENGINE}})
    nodes = Nodes()
    images = ImageNodes(nodes, everywhere=True)
    assert await images.mount(service, None) is None
    nodes.busy = False
    assert await images.mount(service, None)


@pytest.mark.parametrize(
    ("nodes", "placeable"),
    [
        ([{"kind": "b"}, {"kind": "a"}], True),
        ([{"kind": "a", "cordoned": True}], False),
        ([{"kind": "b"}], False),
        ([], None),
        (None, None),
    ],
)
async def test_whether_any_node_could_take_the_pods(nodes: list[dict[str, Any]] | None, placeable: bool | None) -> None:
    class Nodes:
        async def items(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
            if nodes is None:
                raise Refused("nodes is forbidden")
            found = [_node(node["kind"], unschedulable=node.get("cordoned", False)) for node in nodes]
            return [{**node, "status": {"conditions": [{"type": "Ready", "status": "True"}]}} for node in found]

    meta = {"name": "s", "namespace": "n", "uid": "u"}
    spec = {"model": _MODEL, "engine": ENGINE, "podTemplate": {"spec": {"nodeSelector": {"kind": "a"}}}}
    service = InferenceService.parse({"metadata": meta, "spec": spec})
    assert await ImageNodes(Nodes(), everywhere=True).hold(service) is placeable
    assert await ImageNodes(Nodes(), everywhere=False).hold(service) is None


async def test_passes_at_the_same_time_share_one_look_and_a_silent_api_server_keeps_none_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nodes:
        looks = 0

        def __init__(self) -> None:
            self.answers = asyncio.Event()

        async def items(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
            self.looks += 1
            await self.answers.wait()
            return [_node("a")]

    meta = {"name": "s", "namespace": "n", "uid": "u"}
    service = InferenceService.parse({"metadata": meta, "spec": {"model": _MODEL, "engine": ENGINE}})
    nodes = Nodes()
    images = ImageNodes(nodes, everywhere=True)
    passes = [asyncio.create_task(images.mount(service, None)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    passes[0].cancel()
    nodes.answers.set()
    assert (await asyncio.gather(*passes[1:]), nodes.looks) == ([True, True], 1)
    monkeypatch.setattr(image_nodes, "_LOOK_LIMIT_S", 0.001)
    assert await ImageNodes(Nodes(), everywhere=True).mount(service, None) is None


async def test_pods_that_serve_are_looked_after_while_the_nodes_of_an_edit_are_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, busy = Bench(), [False]

    async def items(_: Server, kind: Kind, *__: Any, **___: Any) -> list[dict[str, Any]]:
        if busy[0]:
            raise Unavailable("later")
        return [_node("a"), _node("old", runtime="containerd://1.7.27")] if kind == NODE else []

    monkeypatch.setattr(Server, "items", items)
    bench.service(model=_MODEL, engine=ENGINE)
    await bench.passes(2)
    before = deployments(bench)[-1]
    busy[0] = True
    monkeypatch.setattr(image_nodes, "_FRESH_S", 0)
    monkeypatch.setattr(bench.reconciler._observer._images, "_until_s", 0)
    mounts = {"nodeSelector": {"kind": "a"}}
    bench.service(900, model=_MODEL, engine=ENGINE, replicas=3, podTemplate={"spec": mounts})
    bench.again.clear()
    await bench.passes()
    assert deployments(bench)[-1] == {**before, "replicas": 3}, "the number moves, and nothing is decided"
    assert conditions(bench)["Reconciling"] == ("True", "Applying")
    assert 10 in [delay_s for _, delay_s in bench.again]
    busy[0] = False
    await bench.passes()
    assert _way(bench) == _MOUNTED


async def test_no_first_pod_is_made_while_the_nodes_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def items(*_: Any, **__: Any) -> list[dict[str, Any]]:
        raise Unavailable("later")

    bench = Bench()
    monkeypatch.setattr(Server, "items", items)
    bench.service(model=_MODEL, engine=ENGINE)
    await bench.passes()
    assert not deployments(bench)
    assert conditions(bench)["Ready"] == ("False", "Starting")
