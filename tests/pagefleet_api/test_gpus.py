"""How many GPUs a pod gets; the API server's copy of the rules is tested with it."""

from typing import Any

import pytest

from pagefleet_api.service import InferenceService, InvalidService

GROUPS = {"runtime": "vllm", "image": "v"}


def _parse(engine: dict[str, Any], resources: dict[str, Any]) -> InferenceService:
    spec = {
        "model": {"uri": "file:///m" if "runtime" in engine else "pkg://m"},
        "engine": engine,
        "resources": resources,
    }
    return InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": spec})


@pytest.mark.parametrize(
    ("engine", "resources", "count"),
    [
        ({}, {}, 0),
        ({"device": "cpu", "kvCache": {"size": "1Gi"}}, {}, 0),
        ({"device": "cuda"}, {}, 1),
        ({"device": "cuda", "parallelism": {"tensor": 4}}, {}, 4),
        ({"parallelism": {"tensor": 2}}, {}, 2),
        ({}, {"gpu": {"count": 1}}, 1),
        ({}, {"gpu": {"count": 0}}, 0),
        ({"parallelism": {"tensor": 8}}, {"gpu": {"count": 8}}, 8),
        ({**GROUPS, "parallelism": {"pipeline": 2}}, {}, 1),
        ({**GROUPS, "parallelism": {"tensor": 8, "pipeline": 2}}, {"gpu": {"count": 16}}, 8),
        ({**GROUPS, "parallelism": {"pipeline": 2}}, {"gpu": {"count": 0}}, 0),
        ({}, {"limits": {"nvidia.com/gpu": 1}}, 0),
        ({"device": "cuda"}, {"gpu": {"resourceName": "amd.com/gpu"}, "limits": {"nvidia.com/gpu": 1}}, 1),
    ],
)
def test_a_pod_gets_the_gpus_that_share_its_model(
    engine: dict[str, Any], resources: dict[str, Any], count: int
) -> None:
    assert _parse(engine, resources).spec.gpu_count == count


SIZED = {"kvCache": {"size": "1Gi"}}


@pytest.mark.parametrize(
    ("engine", "resources", "words"),
    [
        ({"device": "cpu", **SIZED}, {"gpu": {"count": 1}}, "engine.device cpu takes no GPU"),
        ({"device": "paced"}, {"gpu": {"count": 1}}, "engine.device paced takes no GPU"),
        ({"device": "cpu", **SIZED, "parallelism": {"tensor": 2}}, {}, "engine.device cpu takes no GPU"),
        (
            {"device": "cuda"},
            {"gpu": {"count": 0}},
            "count 0 must be engine.parallelism.tensor 1 times",
        ),
        (
            {"parallelism": {"tensor": 4}},
            {"gpu": {"count": 2}},
            "count 2 must be engine.parallelism.tensor 4 times pipeline 1",
        ),
        (
            {**GROUPS, "parallelism": {"tensor": 2, "pipeline": 2}},
            {"gpu": {"count": 2}},
            "count 2 must be engine.parallelism.tensor 2 times pipeline 2",
        ),
        ({"parallelism": {"tensor": 2}}, {"gpu": {"count": 0}}, "count 0 must be engine.parallelism.tensor"),
        ({"device": "cuda"}, {"limits": {"nvidia.com/gpu": 1}}, "nvidia.com/gpu must not be in resources.limits"),
        (
            {},
            {"gpu": {"count": 1}, "requests": {"nvidia.com/gpu": 1}},
            "nvidia.com/gpu must not be in resources.limits",
        ),
    ],
)
def test_gpus_that_do_not_agree_are_refused_with_the_numbers(
    engine: dict[str, Any], resources: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidService) as refusal:
        _parse(engine, resources)
    assert words in str(refusal.value)
    assert "given" not in str(refusal.value), "the whole spec is no help"


@pytest.mark.parametrize("name", ["a..b/x", "-a/x", f"a/{'x' * 64}", "a/x-", "gpu"])
def test_gpus_have_a_name_that_a_taint_can_have_too(name: str) -> None:
    with pytest.raises(InvalidService, match=r"resources\.gpu\.resourceName: must be DOMAIN/NAME"):
        _parse({"device": "cuda"}, {"gpu": {"resourceName": name}})


def test_a_trial_of_groups_is_refused_with_the_way_out() -> None:
    spec = {
        "model": {"uri": "file:///m"},
        "engine": {**GROUPS, "parallelism": {"pipeline": 2}},
        "rollout": {"analysis": {}},
    }
    with pytest.raises(InvalidService, match=r"rollout\.analysis is not available .* leave rollout\.analysis out"):
        InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": spec})


@pytest.mark.parametrize("cache", [{}, {"mode": "None"}, {"mode": "PVC", "pvc": "c"}, {"mode": "Node"}])
@pytest.mark.parametrize(("uri", "pipeline"), [("hf://o/n", 2), ("https://h/m", 2), ("hf://o/n", 1), ("file:///m", 2)])
def test_groups_take_no_model_that_each_pod_downloads_for_itself(
    cache: dict[str, Any], uri: str, pipeline: int
) -> None:
    model = {"uri": uri, **({} if uri.startswith("file") else {"cache": cache})}
    spec = {"model": model, "engine": {**GROUPS, "parallelism": {"pipeline": pipeline}}}
    body = {"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": spec}
    if pipeline == 1 or uri.startswith("file") or cache.get("mode") in {"PVC", "Node"}:
        assert InferenceService.parse(body)
        return
    with pytest.raises(InvalidService, match=r"give model\.cache\.mode PVC or Node, or a model\.uri"):
        InferenceService.parse(body)
