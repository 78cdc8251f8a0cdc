"""How each engine is started, probed and ended: one module an engine, one value for the pod template."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes import custom, pagefleet, sglang, tensorrt_llm, tgi, vllm
from pagefleet_operator.render.runtimes.parts import EngineParts as EngineParts
from pagefleet_operator.render.runtimes.parts import waiting_for_leader

_ENGINES: Mapping[Runtime, Callable[[InferenceService, ModelPlace], EngineParts]] = {
    Runtime.PAGEFLEET: pagefleet.parts,
    Runtime.VLLM: vllm.parts,
    Runtime.SGLANG: sglang.parts,
    Runtime.TGI: tgi.parts,
    Runtime.TENSORRT_LLM: tensorrt_llm.parts,
    Runtime.CUSTOM: custom.parts,
}


def engine_parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What the pod template of this service has from its engine."""
    return _ENGINES[service.spec.engine.runtime](service, model)


def worker_parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What it has in a pod of a group that is not the leader: no port, no probe, and SIGTERM only after the leader.

    The leader's running answers need it; it is told to end first where its node is drained. Needs bash, sleep and
    timeout in the image.
    """
    leader = engine_parts(service, model)
    wait = waiting_for_leader(leader.ports[0]["containerPort"], limit_s=leader.leaving.grace_s)
    return replace(
        leader,
        args=leader.args if leader.worker_args is None else leader.worker_args,
        ports=(),
        probes={},
        leaving=leader.leaving._replace(lifecycle={"preStop": {"exec": {"command": ["bash", "-c", wait]}}}),
        pod_labels={},
        annotations={},
    )
