"""How each engine is started, probed and ended: one module an engine, one value for the pod template."""

from collections.abc import Callable, Mapping

from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes import custom, pagefleet, sglang, tensorrt_llm, tgi, vllm
from pagefleet_operator.render.runtimes.parts import EngineParts as EngineParts

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
