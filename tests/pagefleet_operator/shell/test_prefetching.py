"""Passes over a service whose model a claim caches."""

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.download import DownloadProgress
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.facts.observed import Now
from pagefleet_operator.reconciling import reconcile
from tests.pagefleet_operator.shell.bench import KEY, Bench

MODEL: dict[str, Any] = {"uri": "s3://bucket/name", "cache": {"mode": "PVC", "pvc": "models"}}
ENGINE = {"device": "cpu", "kvCache": {"size": "64Mi"}}


def job(bench: Bench, begins: str = "") -> dict[str, Any]:
    (found,) = (live for live in bench.cache.jobs("n") if live["metadata"]["name"].startswith(begins))
    return dict(found)


def complete(bench: Bench, begins: str = "") -> None:
    bench.server.version += 1
    live = job(bench, begins)
    meta = {**live["metadata"], "resourceVersion": str(bench.server.version)}
    status = {"conditions": [{"type": "Complete", "status": "True"}]}
    bench.cache.put("Job", {**live, "metadata": meta, "status": status})


def written_long_ago(bench: Bench, kind: str) -> None:
    (live,) = (body for child, body in bench.cache.children(KEY).items() if child.kind == kind)
    bench.server.version += 1
    written = [{"manager": labels.FIELD_MANAGER, "operation": "Apply", "time": "2026-01-01T00:00:20Z"}]
    meta = {**live["metadata"], "resourceVersion": str(bench.server.version), "managedFields": written}
    bench.cache.put(kind, {**live, "metadata": meta})


def deployments(bench: Bench) -> list[Any]:
    return [body["spec"] for body in bench.server.bodies if body.get("kind") == "Deployment"]


def told(bench: Bench) -> list[dict[str, Any]]:
    statuses = [body["status"] for body in bench.server.bodies if "conditions" in body.get("status", {})]
    return list(statuses[-1]["conditions"])


def conditions(bench: Bench) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in told(bench)}


async def test_no_pod_is_wanted_before_the_model_is_there() -> None:
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE, replicas=2)
    calls = await bench.passes()
    assert calls[0] == "create Job"
    assert deployments(bench)[-1]["replicas"] == 0
    assert conditions(bench)["ModelCached"] == ("False", "Fetching")
    assert conditions(bench)["Ready"] == ("False", "ModelNotCached")
    assert "create Job" not in await bench.passes()
    complete(bench)
    await bench.passes()
    assert deployments(bench)[-1]["replicas"] == 2
    assert conditions(bench)["ModelCached"] == ("True", "Cached")


async def test_groups_whose_model_takes_long_are_not_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    shared = {"runtime": "vllm", "image": "v", "device": "cuda", "parallelism": {"pipeline": 2}}
    bench.service(model=MODEL, engine=shared)
    await bench.passes(2)
    monkeypatch.setattr(reconcile, "Now", lambda wall, monotonic_s: Now(wall + timedelta(hours=2), monotonic_s))
    await bench.passes(2)
    assert conditions(bench)["Ready"] == ("False", "ModelNotCached")
    assert conditions(bench).get("Stalled", ("False", ""))[0] == "False", conditions(bench).get("Stalled")
    written_long_ago(bench, "LeaderWorkerSet")
    complete(bench)
    for _ in range(2):
        await bench.passes()
        assert conditions(bench).get("Stalled", ("False", ""))[0] == "False", conditions(bench).get("Stalled")
    monkeypatch.setattr(reconcile, "Now", lambda wall, monotonic_s: Now(wall + timedelta(hours=4), monotonic_s))
    await bench.passes(2)
    assert conditions(bench)["Stalled"] == ("True", "ProgressDeadlineExceeded"), "no pod came in two hours"


async def test_a_new_model_is_downloaded_before_its_roll_out_begins() -> None:
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE)
    await bench.passes()
    complete(bench)
    await bench.passes()
    old = deployments(bench)[-1]
    bench.service(900, model={**MODEL, "uri": "s3://bucket/next"}, engine={**ENGINE, "maxNumSeqs": 3}, replicas=4)
    calls = await bench.passes()
    assert "create Job" in calls and "delete Job" in calls, "the record of the old model is nobody's any more"
    held = deployments(bench)[-1]
    assert (held["replicas"], held["template"]) == (4, old["template"])
    complete(bench)
    await bench.passes()
    assert deployments(bench)[-1]["template"] != old["template"]


async def test_a_service_that_caches_no_more_leaves_no_job() -> None:
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE)
    await bench.passes()
    bench.service(900, model={"uri": "pkg://m"}, engine=ENGINE)
    assert "delete Job" in await bench.passes()
    assert bench.cache.jobs("n") == []


async def test_a_second_service_joins_the_job_and_its_news_reach_both() -> None:
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE)
    await bench.passes()
    uid = job(bench)["metadata"]["uid"]
    other = {
        **bench.server.objects["s"],
        "metadata": {**bench.server.objects["s"]["metadata"], "name": "t", "uid": "w"},
    }
    bench.server.objects["t"] = other
    bench.cache.put(labels.KIND, other)
    bench.server.calls.clear()
    second = KEY._replace(name="t")
    await bench.reconciler.converge(second)
    assert bench.server.calls[0] == "own Job"
    assert set(bench.cache.owners("Job", uid)) == {KEY, second}
    pod_labels = {labels.FETCH: job(bench)["metadata"]["name"]}
    meta = {"namespace": "n", "name": "p", "uid": "uid p", "resourceVersion": "1", "labels": pod_labels}
    failed = {"terminated": {"exitCode": 3, "message": "s3://bucket/name answered HTTP 401"}}
    status = {"containerStatuses": [{"name": labels.FETCH_CONTAINER, "state": failed, "restartCount": 1}]}
    bench.cache.put("Pod", {"metadata": meta, "status": status})
    assert set(bench.cache.owners("Pod", "uid p")) == {KEY, second}
    await bench.passes()
    assert conditions(bench)["ModelCached"] == ("False", "ModelFetchFailed")
    assert "HTTP 401" in str(told(bench))


async def test_a_models_job_that_somebody_removed_stops_no_pod() -> None:
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE)
    await bench.passes()
    complete(bench)
    await bench.passes()
    bench.cache.drop("Job", job(bench)["metadata"]["uid"])
    assert "create Job" in await bench.passes()
    assert deployments(bench)[-1]["replicas"] == 1


async def test_models_that_others_name_or_still_serve_stay_when_room_is_made() -> None:
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE)
    await bench.passes()
    complete(bench)
    await bench.passes()
    served = job(bench)["metadata"]["labels"][labels.MODEL]
    meta = {"namespace": "n", "name": "t", "uid": "w", "resourceVersion": "1", "generation": 1}
    mounted = {"model": {"uri": "pvc://models/by-hand/a"}, "engine": ENGINE}
    bench.cache.put(labels.KIND, {"kind": labels.KIND, "metadata": meta, "spec": mounted})
    unreadable = {"kind": labels.KIND, "metadata": {**meta, "name": "u", "uid": "x"}, "spec": {"model": {"uri": "?"}}}
    bench.cache.put(labels.KIND, unreadable)
    limited = {**MODEL["cache"], "limit": "1Gi"}
    bench.service(900, model={**MODEL, "uri": "s3://bucket/next", "cache": limited}, engine=ENGINE)
    await bench.passes()
    made = next(body for body in reversed(bench.server.bodies) if body.get("kind") == "Job" and "spec" in body)
    args = made["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-4:] == ["--in-use", "by-hand", "--in-use", served]


@pytest.mark.parametrize("whose", [labels.SERVICE, labels.GROUP_OF])
async def test_a_model_that_older_pods_serve_stays_when_room_is_made(whose: str) -> None:
    """Beside a trial, in a roll-out of groups, or while their service cannot be read, they alone name it."""
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE)
    await bench.passes()
    complete(bench)
    await bench.passes()
    served, template = job(bench)["metadata"]["labels"][labels.MODEL], deployments(bench)[-1]["template"]
    marks = {whose: "s", labels.SERVING: labels.SERVING_TRUE}
    meta = {"namespace": "n", "resourceVersion": "1", "labels": marks, "name": "s-old-1", "uid": "p"}
    bench.cache.put("Pod", {"metadata": meta, "spec": template["spec"]})
    limited = {**MODEL, "uri": "s3://bucket/next", "cache": {**MODEL["cache"], "limit": "1Gi"}}
    (live,) = (bench.cache.children(KEY)[key] for key in bench.cache.children(KEY) if key.kind == "Deployment")
    spec = {**live["spec"], "template": {"spec": {}}}
    of_next = {**live["metadata"], "resourceVersion": "999", "annotations": {}}
    bench.cache.put("Deployment", {**live, "spec": spec, "metadata": of_next})
    bench.service(1000, model=limited, engine=ENGINE)
    await bench.passes()
    made = next(body for body in reversed(bench.server.bodies) if body.get("kind") == "Job" and "spec" in body)
    assert made["spec"]["template"]["spec"]["containers"][0]["args"][-2:] == ["--in-use", served]


async def test_a_download_that_would_remove_what_came_into_use_since_is_made_anew() -> None:
    bench = Bench()
    limited = {**MODEL, "cache": {**MODEL["cache"], "limit": "1Gi"}}
    bench.service(model=limited, engine=ENGINE)
    await bench.passes()
    assert "delete Job" not in await bench.passes()
    meta = {"namespace": "n", "name": "t", "uid": "w", "resourceVersion": "1", "generation": 1}
    mounted = {"model": {"uri": "pvc://models/by-hand/a"}, "engine": ENGINE}
    bench.cache.put(labels.KIND, {"kind": labels.KIND, "metadata": meta, "spec": mounted})
    calls = await bench.passes(2)
    assert [call for call in calls if call.endswith("Job")] == ["delete Job", "create Job"]
    args = job(bench)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-2:] == ["--in-use", "by-hand"]
    assert "delete Job" not in await bench.passes(2)


async def test_a_download_that_another_operators_service_shares_is_left_as_it_is() -> None:
    bench = Bench()
    limited = {**MODEL, "cache": {**MODEL["cache"], "limit": "1Gi"}}
    bench.service(model=limited, engine=ENGINE)
    await bench.passes()
    live = job(bench)
    owners = [*live["metadata"]["ownerReferences"], {"kind": labels.KIND, "name": "theirs", "uid": "of another shard"}]
    meta = {**live["metadata"], "resourceVersion": "900", "ownerReferences": owners}
    bench.cache.put("Job", {**live, "metadata": meta})
    of_mounted = {"namespace": "n", "name": "t", "uid": "w", "resourceVersion": "1", "generation": 1}
    mounted = {"model": {"uri": "pvc://models/by-hand/a"}, "engine": ENGINE}
    bench.cache.put(labels.KIND, {"kind": labels.KIND, "metadata": of_mounted, "spec": mounted})
    assert "delete Job" not in await bench.passes(2)


def failed(bench: Bench, words: str) -> None:
    """A pod of the Job ended with these words."""
    pod_labels = {labels.FETCH: job(bench)["metadata"]["name"]}
    meta = {"namespace": "n", "name": "f", "uid": "uid f", "resourceVersion": "1", "labels": pod_labels}
    ended = {"terminated": {"exitCode": 6, "message": words}}
    status = {"containerStatuses": [{"name": labels.FETCH_CONTAINER, "state": ended, "restartCount": 1}]}
    bench.cache.put("Pod", {"metadata": meta, "status": status})


def in_use(bench: Bench, name: str) -> set[str]:
    """What the newest Job of this name leaves on the claim."""
    made = [body for body in bench.server.bodies if body.get("kind") == "Job" and "spec" in body]
    (args,) = [
        one["spec"]["template"]["spec"]["containers"][0]["args"] for one in made if one["metadata"]["name"] == name
    ]
    return {word for flag, word in pairwise(args) if flag == "--in-use"}


async def test_models_of_another_operators_services_on_the_claim_stay_when_room_is_made() -> None:
    other = Bench()
    other.service(model={**MODEL, "uri": "s3://bucket/theirs"}, engine=ENGINE)
    await other.passes()
    theirs = job(other)
    complete(other)
    await other.passes()
    template = deployments(other)[-1]["template"]
    bench = Bench()
    owner = {"kind": labels.KIND, "name": "theirs", "uid": "of another shard"}
    meta = {**theirs["metadata"], "uid": "their job", "ownerReferences": [owner]}
    elsewhere = json.loads(json.dumps(theirs).replace('"models"', '"another-claim"'))
    bench.cache.put("Job", {**theirs, "metadata": meta})
    bench.cache.put("Job", {**elsewhere, "metadata": {**meta, "uid": "x", "name": "x"}})
    older = template_of("s3://bucket/older", template)
    bench.cache.put(
        "Deployment", {"metadata": {"namespace": "n", "name": "theirs", "uid": "d"}, "spec": {"template": older}}
    )
    limited = {**MODEL, "cache": {**MODEL["cache"], "limit": "1Gi"}}
    bench.service(model=limited, engine=ENGINE)
    await bench.passes()
    (name,) = {one["metadata"]["name"] for one in bench.cache.jobs("n")} - {theirs["metadata"]["name"], "x"}
    assert in_use(bench, name) == {theirs["metadata"]["labels"][labels.MODEL], "older"}


def template_of(key: str, template: dict[str, Any]) -> dict[str, Any]:
    """A template with another folder of the claim."""
    text = json.dumps(template)
    folder = text.partition("/models/")[2].partition('"')[0]
    return dict(json.loads(text.replace(folder, key.rpartition("/")[2])))


async def test_a_download_that_finds_no_room_is_made_anew_once_a_model_went_out_of_use() -> None:
    bench = Bench()
    limited = {**MODEL, "cache": {**MODEL["cache"], "limit": "1Gi"}}
    meta = {"namespace": "n", "name": "t", "uid": "w", "resourceVersion": "1", "generation": 1}
    mounted = {"model": {"uri": "pvc://models/by-hand/a"}, "engine": ENGINE}
    bench.cache.put(labels.KIND, {"kind": labels.KIND, "metadata": meta, "spec": mounted})
    bench.service(model=limited, engine=ENGINE)
    await bench.passes()
    bench.cache.drop(labels.KIND, "w")
    assert "delete Job" not in await bench.passes(), "one that goes on needs no room"
    failed(bench, "the model does not fit into the cache")
    calls = await bench.passes(2)
    assert [call for call in calls if call.endswith("Job")] == ["delete Job", "create Job"]
    assert "--in-use" not in job(bench)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "delete Job" not in await bench.passes(2)


async def test_without_a_prefetch_there_is_no_job_and_pods_are_wanted_at_once() -> None:
    bench = Bench()
    bench.service(model={**MODEL, "cache": {**MODEL["cache"], "prefetch": False}}, engine=ENGINE, replicas=2)
    assert "create Job" not in await bench.passes()
    assert deployments(bench)[-1]["replicas"] == 2
    assert "ModelCached" not in conditions(bench)


def fetching(bench: Bench) -> None:
    """The Job's pod downloads."""
    pod_labels = {labels.FETCH: job(bench)["metadata"]["name"]}
    meta = {"namespace": "n", "name": "f", "uid": "uid f", "resourceVersion": "1", "labels": pod_labels}
    container = {"name": labels.FETCH_CONTAINER, "state": {"running": {}}, "ready": False}
    bench.cache.put("Pod", {"metadata": meta, "status": {"podIP": "10.0.0.9", "containerStatuses": [container]}})


def words(bench: Bench) -> str:
    return next(str(one["message"]) for one in told(bench) if one["type"] == "ModelCached")


async def test_how_far_a_download_is_is_written_once_it_said_so() -> None:
    bench = Bench()
    bench.service(model=MODEL, engine=ENGINE)
    await bench.passes()
    fetching(bench)
    bench.engines.downloads["f"] = DownloadProgress(bytes=1 << 30, total_bytes=4 << 30)
    await bench.passes()
    assert words(bench).endswith("tells how far")
    await asyncio.sleep(0)
    assert (KEY, 0) in bench.again, "what is new brings a pass"
    assert (await bench.passes(3)).count("status") == 1, "what is not new brings no write"
    assert words(bench).endswith("1.0 of 4.0 GiB (25 %)")


async def test_pods_wait_for_the_model_and_every_adapter_and_the_last_one_is_told_of() -> None:
    bench = Bench()
    adapters = [{"name": "sql", "uri": "s3://bucket/sql"}, {"name": "here", "uri": "pvc://trained/a"}]
    bench.service(model={**MODEL, "adapters": adapters}, engine={"runtime": "vllm", "image": "v"})
    calls = await bench.passes()
    assert calls.count("create Job") == 2, "what is on a claim already needs none"
    assert deployments(bench)[-1]["replicas"] == 0
    complete(bench, "fetch-name")
    await bench.passes()
    (cached,) = (one for one in told(bench) if one["type"] == "ModelCached")
    assert (cached["status"], cached["reason"]) == ("False", "Fetching")
    assert cached["message"].startswith("adapter sql: Job fetch-sql-") and "the model:" not in cached["message"]
    complete(bench, "fetch-sql")
    await bench.passes()
    assert deployments(bench)[-1]["replicas"] == 1
    assert conditions(bench)["ModelCached"] == ("True", "Cached")


async def test_an_adapter_that_goes_takes_its_job_along() -> None:
    bench = Bench()
    engine = {"runtime": "vllm", "image": "v"}
    bench.service(model={**MODEL, "adapters": [{"name": "sql", "uri": "s3://bucket/sql"}]}, engine=engine)
    await bench.passes()
    bench.service(900, model=MODEL, engine=engine)
    assert "delete Job" in await bench.passes()
    assert job(bench)["metadata"]["name"].startswith("fetch-name")


async def test_a_pass_looks_at_what_each_service_caches_once_however_much_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, asked, name_of = Bench(), list[str](), render.job_name

    def counted(part: InferenceService) -> str:
        asked.append(part.name)
        return name_of(part)

    monkeypatch.setattr(render, "job_name", counted)
    adapters = [{"name": f"a{number}", "uri": f"s3://bucket/a{number}"} for number in range(9)]
    bench.service(model={**MODEL, "adapters": adapters}, engine={"runtime": "vllm", "image": "v"})
    for name in "xyz":
        meta = {**bench.server.objects["s"]["metadata"], "name": name, "uid": name}
        bench.cache.put(labels.KIND, {**bench.server.objects["s"], "metadata": meta})
    calls = await bench.passes()
    assert calls.count("create Job") == 10, calls
    assert {name: asked.count(name) for name in "xyz"} == dict.fromkeys("xyz", 10), "its model and nine adapters"
