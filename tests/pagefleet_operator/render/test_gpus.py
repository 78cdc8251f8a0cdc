"""What pods with GPUs get."""

from typing import Any

import pytest

from pagefleet_api.launch import Launch
from pagefleet_api.service import InferenceService
from pagefleet_operator import render

_CHOICES = render.Choices(replicas=2, wanted=2, image="engine:1", fetch_image="f", max_surge=1, max_unavailable=0)


def _pod(engine: dict[str, Any], resources: dict[str, Any]) -> dict[str, Any]:
    spec = {"model": {"uri": "pkg://m"}, "engine": engine, "resources": resources}
    meta = {"name": "s", "namespace": "n", "uid": "u"}
    deployment = render.manifests(InferenceService.parse({"metadata": meta, "spec": spec}), _CHOICES)[-1]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def test_gpus_are_limits_beside_the_users_own() -> None:
    (container,) = _pod({"device": "cuda"}, {"limits": {"memory": "8Gi"}, "requests": {"cpu": "1"}})["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"},
    }
    assert "--device" in container["args"]


def test_a_kind_of_gpu_has_the_name_that_the_user_gives() -> None:
    (container,) = _pod({"device": "cuda"}, {"gpu": {"resourceName": "nvidia.com/mig-3g.40gb"}})["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}


def test_gpus_that_share_a_model_get_shared_memory_and_no_multicast() -> None:
    pod = _pod({"device": "cuda", "parallelism": {"tensor": 4}}, {})
    (container,) = pod["containers"]
    assert Launch.parse(container["args"]).tensor_parallel_size == 4
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert {"name": "NCCL_NVLS_ENABLE", "value": "0"} in container["env"]
    (shared,) = [volume for volume in pod["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory"]
    assert shared["emptyDir"]["sizeLimit"] == "8Gi"
    assert {"name": shared["name"], "mountPath": "/dev/shm"} in container["volumeMounts"]


@pytest.mark.parametrize("engine", [{"device": "cuda"}, {"device": "cpu", "kvCache": {"size": "1Gi"}}])
def test_one_device_needs_neither(engine: dict[str, Any]) -> None:
    pod = _pod(engine, {})
    (container,) = pod["containers"]
    assert "env" not in container
    assert "/dev/shm" not in [mount["mountPath"] for mount in container["volumeMounts"]]
