"""Watches that die without a word, servers that restart, and namespaces that go."""

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.box import Box
from pagefleet_api import labels
from pagefleet_api.crd import custom_resource_definition
from pagefleet_operator.apiserver import cluster
from pagefleet_operator.metrics import Metrics
from pagefleet_operator.settings import Settings
from tests.pagefleet_operator.apiserver.accounts import account, allow, forbid
from tests.pagefleet_operator.apiserver.api import Api, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.operators import service
from tests.pagefleet_operator.apiserver.proxy import Proxy

pytestmark = pytest.mark.apiserver

_QUICK = {"watch_inactivity_s": 4.0, "watch_connect_s": 2.0, "relist_settle_s": 0.5}


@pytest.fixture
def proxy(api: Api) -> Iterator[Proxy]:
    """Between the operator and the API server."""
    made = Proxy((api.host, api.port))
    yield made
    made.close()


def _lose_history(box: Box) -> None:
    """Compact etcd up to now: a watch that would go on from before is answered 410."""
    url = f"http://127.0.0.1:{box.layout.etcd_port}/v3/kv"

    def post(verb: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(f"{url}/{verb}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            found: dict[str, dict[str, str]] = json.loads(answer.read())
            return found

    revision = post("range", {"key": "YQ=="})["header"]["revision"]
    post("compaction", {"revision": revision, "physical": True})


def _handled(api: Api, namespace: str, name: str) -> bool:
    return api.get("deployments", namespace, name) is not None


def test_a_watch_that_falls_silent_is_noticed_and_replaced(
    api: Api, box: Box, namespace: str, start: Start, proxy: Proxy, tmp_path: Path
) -> None:
    operator = start(kubeconfig=proxy.kubeconfig(box.kubeconfig, tmp_path), **_QUICK).ready()
    api.create("inferenceservices", service(namespace, "before"))
    eventually(lambda: _handled(api, namespace, "before"), "the first service is handled")
    assert proxy.black_hole() >= 5
    api.create("inferenceservices", service(namespace, "after"))
    eventually(lambda: _handled(api, namespace, "after"), "the second service is handled", 30)
    assert operator.exit_status is None


def test_the_default_times_notice_a_silent_watch_within_two_minutes() -> None:
    timings = Settings().timings
    assert timings.watch_inactivity_s + timings.watch_connect_s + timings.watch_retry_cap_s < 120
    assert timings.watch_server_timeout_s + timings.watch_inactivity_s < timings.live_watch_s


def test_an_api_server_restart_is_survived(api: Api, box: Box, namespace: str, start: Start) -> None:
    operator = start(**_QUICK).ready()
    api.create("inferenceservices", service(namespace, "before"))
    eventually(lambda: _handled(api, namespace, "before"), "the first service is handled")
    box.stop_apiserver()
    time.sleep(3)
    box.start_apiserver()
    api.create("inferenceservices", service(namespace, "after"))
    eventually(lambda: _handled(api, namespace, "after"), "the second service is handled", 40)
    assert operator.exit_status is None
    assert operator.get("/healthz")[0] == 200


def test_what_went_while_nobody_watched_is_forgotten_after_the_history_is_lost(
    api: Api, box: Box, namespace: str, start: Start, proxy: Proxy, tmp_path: Path
) -> None:
    operator = start(kubeconfig=proxy.kubeconfig(box.kubeconfig, tmp_path), **_QUICK).ready()
    for name in ("stays", "goes"):
        api.create("inferenceservices", service(namespace, name))
        eventually(lambda: f'inference_service="{name}"' in operator.get("/metrics")[1], "it is known")  # noqa: B023
    proxy.cut()
    api.delete("inferenceservices", namespace, "goes")
    eventually(lambda: api.get("inferenceservices", namespace, "goes") is None, "it is gone")
    box.stop_apiserver()
    _lose_history(box)
    box.start_apiserver()
    proxy.heal()
    eventually(lambda: operator.events("unnoticed_deletion"), "it is missed", 40)
    eventually(lambda: 'inference_service="goes"' not in operator.get("/metrics")[1], "it is forgotten")
    api.create("inferenceservices", service(namespace, "new"))
    eventually(lambda: _handled(api, namespace, "new"), "it works on", 30)
    assert not operator.events("pass_crashed")


def test_a_namespace_that_is_deleted_goes_and_nothing_is_tried_again_and_again(
    api: Api, namespace: str, start: Start
) -> None:
    other = f"{namespace}-going"
    api.create("namespaces", {"metadata": {"name": other}})
    operator = start(flags=("--namespace", other, "--lease-namespace", namespace)).ready()
    for name in ("a", "b", "c"):
        api.create("inferenceservices", service(other, name))
    eventually(lambda: _handled(api, other, "a"), "children are being made")
    api.delete("namespaces", None, other)
    eventually(lambda: not api.list("inferenceservices", other), "the services are gone", 60)
    eventually(lambda: f'inference_namespace="{other}"' not in operator.get("/metrics")[1], "they are forgotten")
    before = operator.writes()
    never(lambda: operator.writes() > before, "a write into nothing", 2)
    assert len(operator.events("pass_failed")) <= 6
    assert not operator.events("pass_crashed")


def test_a_namespace_whose_role_is_gone_is_left_and_the_others_are_served_on(
    api: Api, box: Box, namespace: str, start: Start, tmp_path: Path
) -> None:
    other = f"{namespace}-shut"
    api.create("namespaces", {"metadata": {"name": other}})
    kubeconfig = account(api, box.kubeconfig, tmp_path, namespace)
    allow(api, namespace, namespace)
    allow(api, namespace, other)
    flags = ("--namespace", namespace, "--namespace", other)
    short = {"watch_server_timeout_s": 2, "watch_retry_cap_s": 1.0, "relist_settle_s": 0.2}

    def is_served(where: str, name: str) -> None:
        api.create("inferenceservices", service(where, name))
        eventually(lambda: _handled(api, where, name), f"{name} in {where} is handled", 20)

    first = start(kubeconfig=kubeconfig, flags=flags, **short).ready()
    is_served(other, "a")
    forbid(api, other)
    eventually(lambda: first.events("namespace_refused"), "it is noticed", 20)
    eventually(lambda: f'inference_namespace="{other}"' not in first.get("/metrics")[1], "it counts as empty")
    is_served(namespace, "b")
    first.stop()
    second = start(kubeconfig=kubeconfig, flags=flags, **short).ready()
    assert other in second.get("/readyz")[1]
    assert second.get("/healthz")[0] == 200
    is_served(namespace, "c")
    allow(api, namespace, other)
    is_served(other, "d")
    assert other not in second.get("/readyz")[1]


def test_creating_a_child_in_a_terminating_namespace_is_told_apart(
    api: Api, box: Box, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{namespace}-held"
    api.create("namespaces", {"metadata": {"name": other}})
    held = {"metadata": {"name": "held", "namespace": other, "finalizers": ["example.com/held"]}}
    api.create("serviceaccounts", held)
    api.delete("namespaces", None, other)
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(box.kubeconfig))

    async def attempt() -> None:
        client = await cluster.connect()
        try:
            at = cluster.Cluster(client, Settings(), Metrics(), may_write=lambda: True)
            meta = {"name": "new", "namespace": other}
            await at.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
        finally:
            await client.close()

    try:
        with pytest.raises(cluster.Terminating):
            asyncio.run(attempt())
    finally:
        api.merge("serviceaccounts", other, "held", {"metadata": {"finalizers": None}})


def test_only_the_given_namespaces_are_served_and_without_any_the_whole_cluster(
    api: Api, namespace: str, start: Start
) -> None:
    other = f"{namespace}-other"
    api.create("namespaces", {"metadata": {"name": other}})
    first = start().ready()
    api.create("inferenceservices", service(namespace))
    api.create("inferenceservices", service(other))
    eventually(lambda: _handled(api, namespace, "s"), "the given namespace is served")
    never(lambda: _handled(api, other, "s"), "another namespace was served", 2)
    first.stop()
    start(flags=("--lease-name", "wide")).ready()
    eventually(lambda: _handled(api, other, "s"), "the other namespace is served")
    api.delete("inferenceservices", other, "s")
    assert labels.child_name("s") == "s"


def test_without_its_crd_an_operator_ends_and_the_next_one_waits_for_it(api: Api, namespace: str, start: Start) -> None:
    first = start(watch_server_timeout_s=3).ready()
    api.delete("customresourcedefinitions", None, "inferenceservices.pagefleet.io")
    try:
        eventually(lambda: first.exit_status is not None, "the operator ends", 30)
        assert first.exit_status == 1
        second = start()
        eventually(lambda: second.events("crd_missing"), "the next one says what it waits for", 30)
    finally:
        api.create("customresourcedefinitions", custom_resource_definition())
    second.ready()
    api.create("inferenceservices", service(namespace))
    eventually(lambda: _handled(api, namespace, "s"), "it works")
