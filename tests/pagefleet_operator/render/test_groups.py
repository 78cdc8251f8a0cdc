"""What the pods of a group are given: the leader serves, the others compute for it and outlive its answers."""

import os
import socket
import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.render.runtimes.parts import waiting_for_leader
from tests.pagefleet_api.test_runtimes import engine
from tests.pagefleet_operator.render.test_runtimes import flag

_CHOICES = render.Choices(replicas=2, wanted=2, image="engine:1", fetch_image="fetch:1", max_surge=1, max_unavailable=0)
_SHARED = {"parallelism": {"tensor": 4, "pipeline": 3}}


def group_set(runtime: Runtime, **spec: Any) -> dict[str, Any]:
    whole = {"model": {"uri": "file:///m"}, "engine": engine(runtime, device="cuda", **_SHARED), **spec}
    meta = {"name": "s", "namespace": "n", "uid": "u", "generation": 1}
    service = InferenceService.parse({"metadata": meta, "spec": whole})
    (found,) = (each for each in render.manifests(service, _CHOICES) if each["kind"] == "LeaderWorkerSet")
    return found


def templates(runtime: Runtime, **spec: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the leader and of the others."""
    made = group_set(runtime, **spec)["spec"]["leaderWorkerTemplate"]
    return made["leaderTemplate"], made["workerTemplate"]


def test_whoever_selects_a_services_pods_finds_leaders_alone() -> None:
    leader, worker = (template["metadata"]["labels"] for template in templates(Runtime.VLLM))
    asked = {**labels.selector("s"), labels.SERVING: labels.SERVING_TRUE}.items()
    assert asked <= leader.items()
    assert not {labels.SERVICE, labels.SERVING, labels.RUNTIME} & set(worker)
    assert worker[labels.GROUP_OF] == labels.child_name("s")


def test_a_pod_has_the_gpus_of_one_stage_and_nobody_probes_or_calls_a_worker() -> None:
    extra = {"readinessProbe": {"periodSeconds": 1}, "env": [{"name": "A", "value": "b"}]}
    overlay = {"spec": {"containers": [{"name": labels.CONTAINER, **extra}]}}
    leader, worker = (each["spec"]["containers"][0] for each in templates(Runtime.VLLM, podTemplate=overlay))
    for container in (leader, worker):
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
        assert {"name": "A", "value": "b"} in container["env"]
    assert leader["readinessProbe"]["periodSeconds"] == 1
    assert not {"ports", "startupProbe", "readinessProbe", "livenessProbe"} & {name for name in worker if worker[name]}


def test_each_engine_is_told_its_place_in_the_group() -> None:
    for runtime, addresses in (
        (Runtime.VLLM, {"--master-addr": "$(LWS_LEADER_ADDRESS)", "--pipeline-parallel-size": "3"}),
        (Runtime.SGLANG, {"--dist-init-addr": "$(LWS_LEADER_ADDRESS):20000", "--pp-size": "3"}),
    ):
        for template in templates(runtime):
            args = template["spec"]["containers"][0]["args"]
            told = {name: flag(args, name) for name in ("--nnodes", "--node-rank", *addresses)}
            assert told == {"--nnodes": "3", "--node-rank": "$(LWS_WORKER_INDEX)", **addresses}
    leader, worker = (template["spec"]["containers"][0]["args"] for template in templates(Runtime.VLLM))
    assert worker == [*leader, "--headless"]
    offloading = engine(Runtime.VLLM, device="cuda", kvCache={"hostOffload": "1536Mi"}, **_SHARED)
    template, _ = templates(Runtime.VLLM, engine=offloading)
    assert flag(template["spec"]["containers"][0]["args"], "--kv-offloading-size") == "4.5", "of all three pods"
    leader, worker = (template["spec"]["containers"][0] for template in templates(Runtime.CUSTOM))
    assert (leader.get("command"), leader.get("args")) == (worker.get("command"), worker.get("args"))


def test_vllm_gives_a_step_that_a_lost_worker_does_not_finish_up_unless_the_user_says_otherwise() -> None:
    def limits(**spec: Any) -> list[str]:
        found = [template["spec"]["containers"][0]["env"] for template in templates(Runtime.VLLM, **spec)]
        return [one["value"] for env in found for one in env if one["name"] == name]

    name = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    assert limits() == ["120", "120"]
    env = [{"name": name, "value": "900"}]
    assert limits(podTemplate={"spec": {"containers": [{"name": labels.CONTAINER, "env": env}]}}) == ["900", "900"]


def test_another_worker_is_another_template_and_a_number_is_none() -> None:
    def digest(**spec: Any) -> str:
        made = group_set(Runtime.VLLM, **spec)
        pods = made["spec"]["leaderWorkerTemplate"]
        found = {made["metadata"]["annotations"][labels.TEMPLATE]}
        found |= {pods[f"{who}Template"]["metadata"]["annotations"][labels.TEMPLATE] for who in ("leader", "worker")}
        (same,) = found
        return str(same)

    assert digest() == digest(replicas=9)
    assert digest() != digest(drain={"timeoutSeconds": 7})


def test_a_worker_ends_once_its_leader_listens_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as leader:
        words = waiting_for_leader(leader.getsockname()[1], limit_s=60)
        environment = {**os.environ, "LWS_LEADER_ADDRESS": "127.0.0.1"}
        with subprocess.Popen(["bash", "-c", words.replace("sleep 1", "sleep 0.02")], env=environment) as waiting:
            leader.accept()[0].close()
            time.sleep(0.1)
            assert waiting.poll() is None
            leader.close()
            assert waiting.wait(timeout=10) == 0
    subprocess.run(["bash", "-c", waiting_for_leader(9, limit_s=0)], check=True, timeout=10, env=environment)


def rendered(choices: render.Choices, kind: str) -> dict[str, Any]:
    whole = {"model": {"uri": "file:///m"}, "engine": engine(Runtime.VLLM, device="cuda", **_SHARED)}
    service = InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": whole})
    (found,) = (each["spec"] for each in render.manifests(service, choices) if each["kind"] == kind)
    return dict(found)


@pytest.mark.parametrize(
    ("replicas", "surge", "asked", "given"),
    [
        (3, 0, "25%", 1),
        (9, "0%", "25%", 2),
        (0, 0, "25%", 1),
        (3, 0, 2, 2),
        (3, 1, "25%", "25%"),
        (3, "10%", "0%", "0%"),
    ],
)
def test_a_share_that_comes_to_no_group_is_one_where_none_is_made_beside(
    replicas: int, surge: int | str, asked: int | str, given: int | str
) -> None:
    choices = replace(_CHOICES, replicas=replicas, max_surge=surge, max_unavailable=asked)
    rolling = rendered(choices, "LeaderWorkerSet")["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert rolling == {"partition": 0, "maxSurge": surge, "maxUnavailable": given}


@pytest.mark.parametrize("draining", [0, 1, 3])
def test_one_pod_may_be_evicted_also_while_groups_drain(draining: int) -> None:
    """Three pods a group; the budget's selector leaves the leaders out that drain."""
    choices = replace(_CHOICES, replicas=2 + draining)
    counted = 2 * 3 + draining * (3 - 1)
    assert counted - rendered(choices, "PodDisruptionBudget")["minAvailable"] == 1
