"""Parts of a spec that do not go together."""

from typing import Any

from tests.pagefleet_api.together.case import LORA, ON_SGLANG, ON_VLLM, Case

_DISK = {"hostOffload": "32Gi", "diskOffload": "200Gi"}


def _whole(words: str, field: str, **spec: Any) -> Case:
    return Case(spec, "spec", field, words)


WHOLES = (
    *(
        _whole(
            f"engine.device {device} takes no GPU: leave resources.gpu and engine.parallelism out, or set "
            "engine.device: cuda",
            "engine.device",
            engine={"device": device, "kvCache": {"size": "1Gi"}},
            resources={"gpu": {"count": 1}},
        )
        for device in ("cpu", "paced")
    ),
    _whole(
        "resources.gpu.count 2 must be engine.parallelism.tensor 4 times pipeline 1; change one of them, or leave "
        "resources.gpu.count out",
        "resources.gpu.count",
        engine={"parallelism": {"tensor": 4}},
        resources={"gpu": {"count": 2}},
    ),
    _whole(
        "resources.gpu.resourceName amd.com/gpu must not be in resources.limits or resources.requests: resources.gpu "
        "says how many GPUs a pod gets; leave it out there",
        "resources.gpu.resourceName",
        engine={"device": "cuda"},
        resources={"gpu": {"resourceName": "amd.com/gpu"}, "limits": {"amd.com/gpu": 1}},
    ),
    _whole(
        "rollout.analysis is not available with engine.parallelism.pipeline 2: a LeaderWorkerSet cannot be halted with "
        "groups of two templates; leave rollout.analysis out",
        "rollout.analysis",
        engine={**ON_VLLM, "parallelism": {"pipeline": 2}},
        rollout={"analysis": {}},
    ),
    _whole(
        "model.cache.mode None is not available with engine.parallelism.pipeline 2: a group is made anew when one of "
        "its pods was restarted, and each would download the whole model again; give model.cache.mode PVC or Node, or "
        "a model.uri that is not downloaded",
        "model.cache.mode",
        model={"uri": "hf://o/n"},
        engine={**ON_VLLM, "parallelism": {"pipeline": 2}},
    ),
    _whole(
        "engine.kvCache.hostOffload 8Gi must be below resources.limits.memory 8G, which it is a part of; raise the "
        "limit or lower hostOffload",
        "engine.kvCache.hostOffload",
        engine={**ON_VLLM, "kvCache": {"hostOffload": "8Gi"}},
        resources={"limits": {"memory": "8G"}},
    ),
    _whole(
        "engine.kvCache.diskOffload 200Gi is not available with model.adapters: SGLang finds blocks on the disk by "
        "their tokens alone, so that one adapter would be given what another one has computed; leave one of them out",
        "engine.kvCache.diskOffload",
        model={"uri": "file:///m", "adapters": [LORA]},
        engine={**ON_SGLANG, "kvCache": _DISK},
    ),
    _whole(
        "engine.kvCache.diskOffload 200Gi must not be above resources.requests.ephemeral-storage 200G, by which pods "
        "get their nodes; raise the request, or leave it out",
        "engine.kvCache.diskOffload",
        engine={**ON_SGLANG, "kvCache": _DISK},
        resources={"requests": {"ephemeral-storage": "200G"}},
    ),
    _whole(
        "engine.kvCache.diskOffload 200Gi must be below resources.limits.ephemeral-storage 200Gi, which it is a part "
        "of; raise the limit or lower diskOffload",
        "engine.kvCache.diskOffload",
        engine={**ON_SGLANG, "kvCache": _DISK},
        resources={"limits": {"ephemeral-storage": "200Gi"}},
    ),
    _whole(
        "engine.speculative.method draft needs model.draft: a smaller model with the same tokens, for example "
        "{uri: hf://ORG/SMALL}",
        "model.draft",
        engine={**ON_VLLM, "speculative": {"method": "draft"}},
    ),
    _whole(
        "model.draft hf://o/s is for engine.speculative.method draft, not for method none; set method: draft, or leave "
        "model.draft out",
        "model.draft",
        model={"uri": "file:///m", "draft": {"uri": "hf://o/s"}},
    ),
    _whole(
        "engine.speculative.method draft is not available with engine.runtime sglang and model.adapters, which no "
        "draft knows; use method ngram, or leave model.adapters out",
        "engine.speculative.method",
        model={"uri": "file:///m", "adapters": [LORA], "draft": {"uri": "hf://o/s"}},
        engine={**ON_SGLANG, "speculative": {"method": "draft"}},
    ),
    _whole(
        "model.uri pkg://m: pkg:// is for engine.runtime pagefleet, not for engine.runtime vllm; use file:///PATH, a "
        "path in the image",
        "model.uri",
        model={"uri": "pkg://m"},
        engine=ON_VLLM,
    ),
    _whole(
        "model.servedName llama:8b must not have a colon with engine.runtime sglang, where one stands between a "
        "model's name and its adapter's; give a name without one",
        "model.servedName",
        model={"uri": "file:///m", "servedName": "llama:8b"},
        engine=ON_SGLANG,
    ),
    _whole(
        "model.adapters is not available with engine.runtime tensorrt-llm: its server takes an adapter by the path "
        "that a request gives (lora_request), not by a name; use engine.runtime pagefleet, vllm, sglang or tgi",
        "model.adapters",
        model={"uri": "file:///m", "adapters": [LORA]},
        engine={**ON_VLLM, "runtime": "tensorrt-llm"},
    ),
    *(
        _whole(
            f"autoscaling.metrics: {kind} is not told by engine.runtime tgi; use WaitingRequests and InFlightRequests",
            "autoscaling.metrics",
            engine={**ON_VLLM, "runtime": "tgi"},
            autoscaling={"maxReplicas": 2, "metrics": [{"type": kind, "target": target}]},
        )
        for kind, target in (
            ("KVCacheUsage", {"averageUtilization": 75}),
            ("KVCacheDemand", {"averageUtilization": 75}),
            ("TimeToFirstToken", {"p95": "1s"}),
        )
    ),
    *(
        Case(
            {"resources": {"requests": {"cpu": 1, name: asked}, "limits": {"cpu": 1, name: limit}}},
            "spec.resources",
            "requests",
            f"resources.requests.{name} {asked} is above resources.limits.{name} {limit}; lower the request or raise "
            "the limit",
        )
        for name, asked, limit in (("memory", "2Gi", "2G"), ("example.com/nic", 3, 2))
    ),
    Case(
        {"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}},
        "spec.rollout",
        "maxUnavailable",
        "rollout.maxSurge 0 and rollout.maxUnavailable 0% must not both be 0: no pod could ever be replaced; give one "
        "of them 1 or more, or leave it out",
    ),
)
