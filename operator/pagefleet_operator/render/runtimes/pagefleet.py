"""Our own engine: typed flags, a port for the operator alone, and a drain of its own."""

from pagefleet_api import labels, quantity
from pagefleet_api.launch import Adapter, Launch
from pagefleet_api.service import InferenceService, Spec
from pagefleet_operator.facts.expansion import literal
from pagefleet_operator.render import chat_template
from pagefleet_operator.render.drain import leaving
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes.parts import EngineParts, Part, own_start_probe, port, probe, share


def parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What our engine brings into the pod."""
    spec = service.spec
    admin = labels.ADMIN_PORT_NAME
    return EngineParts(
        args=[*map(literal, launch(service, model).argv()), *spec.engine.extra_args],
        ports=[port(labels.PORT_NAME, labels.ENGINE_PORT), port(admin, labels.ADMIN_PORT)],
        env_from=_api_keys(spec),
        probes={
            "startupProbe": own_start_probe("/readyz"),
            "readinessProbe": probe("/readyz", admin, period_s=2, timeout_s=4, failures=2),
            "livenessProbe": probe("/healthz", admin, period_s=5, timeout_s=5, failures=6),
        },
        leaving=leaving(spec.drain, serves_through_lag=True),
    )


def launch(service: InferenceService, model: ModelPlace) -> Launch:
    """How the engine in each pod is started."""
    spec, engine = service.spec, service.spec.engine
    size, memory = engine.kv_cache.size, share(engine)
    return Launch(
        model=model.uri,
        served_model_name=service.served_name,
        adapters=tuple(Adapter(adapter.name, adapter.path) for adapter in model.adapters),
        device=engine.device.value,
        dtype=engine.dtype,
        port=labels.ENGINE_PORT,
        admin_port=labels.ADMIN_PORT,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        scheduling_policy=engine.scheduling.policy,
        max_queued_requests=engine.max_queued_requests,
        tensor_parallel_size=engine.parallelism.tensor,
        kv_cache_bytes=None if size is None else quantity.to_bytes(size),
        gpu_memory_utilization=0.9 if memory is None else float(memory),
        drain_timeout_s=spec.drain.timeout_seconds,
        chat_template=chat_template.path(spec),
        # An empty Secret must not open the service to everybody.
        require_api_key=engine.api_keys_secret_ref is not None,
    )


def _api_keys(spec: Spec) -> list[Part]:
    """Keys reach the engine through its environment alone, never as an argument or an annotation."""
    secret = spec.engine.api_keys_secret_ref
    if secret is None:
        return []
    return [{"prefix": labels.API_KEY_ENV_PREFIX, "secretRef": {"name": secret.name}}]
