"""Hugging Face's Text Generation Inference.

90 s after SIGTERM its launcher kills the web server with whatever still runs, so SIGTERM waits until nothing does.
"""

from pagefleet_api import labels
from pagefleet_api.runtimes import TRAITS, Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes.parts import (
    EngineParts,
    chosen,
    flags,
    foreign_labels,
    foreign_probes,
    foreign_variables,
    leaving_when_idle,
    port,
    share,
    tensor,
)

_KV_DTYPE = {"fp8": "fp8_e4m3fn"}


def parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What TGI brings into the pod. Its image's entry point stays, as it prepares libraries."""
    engine = service.spec.engine
    return EngineParts(
        args=[
            *flags(
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
            ),
            *engine.extra_args,
        ],
        ports=[port(labels.PORT_NAME, labels.ENGINE_PORT)],
        env=foreign_variables(HUGGINGFACE_HUB_CACHE="/tmp/hub", USAGE_STATS="off"),
        probes=foreign_probes(TRAITS[Runtime.TGI].health_path),
        leaving=leaving_when_idle(service, Runtime.TGI),
        pod_labels=foreign_labels(Runtime.TGI),
    )
