"""Hugging Face's Text Generation Inference.

90 s after SIGTERM its launcher kills the web server with whatever still runs, so SIGTERM waits until nothing does.
"""

from pagefleet_api import labels
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService
from pagefleet_api.speculative import DEFAULT_TOKENS
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes.parts import (
    EngineParts,
    chosen,
    flags,
    foreign_parts,
    leaving_when_idle,
    share,
    tensor,
)

_KV_DTYPE = {"fp8": "fp8_e4m3fn"}


def parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What TGI brings into the pod. Its image's entry point stays, as it prepares libraries."""
    engine, speculative = service.spec.engine, service.spec.engine.speculative
    args = flags(
        ("--model-id", model.path or model.uri),
        # else it listens on $HOSTNAME, which is the pod's name
        ("--hostname", "0.0.0.0"),
        ("--port", labels.ENGINE_PORT),
        ("--dtype", chosen(engine.dtype)),
        ("--quantize", engine.quantization),
        ("--max-total-tokens", engine.max_model_len),
        ("--max-batch-prefill-tokens", engine.max_num_batched_tokens),
        ("--cuda-memory-fraction", share(engine)),
        ("--kv-cache-dtype", _KV_DTYPE.get(engine.kv_cache.dtype or "")),
        ("--num-shard", tensor(service.spec)),
        # with nothing else to guess by, as Medusa's heads in the model, it is by n-grams
        ("--speculate", (speculative.tokens or DEFAULT_TOKENS) if speculative.guesses else None),
    )
    adapters = {"LORA_ADAPTERS": ",".join(map(str, model.adapters))} if model.adapters else {}
    environment = {"HUGGINGFACE_HUB_CACHE": "/tmp/hub", "USAGE_STATS": "off", **adapters}
    leaves = leaving_when_idle(service, Runtime.TGI)
    return foreign_parts(service, Runtime.TGI, args, environment=environment, leaves=leaves)
