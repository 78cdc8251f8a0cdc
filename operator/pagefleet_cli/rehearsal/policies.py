"""A policy and its fleet from a file and from options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from pagefleet_api import labels, step_costs
from pagefleet_api.service import InferenceService
from pagefleet_api.sizing.demand import demand_of
from pagefleet_api.status import Status
from pagefleet_api.step_costs import StepCosts
from pagefleet_cli.documents import Document, read_documents
from pagefleet_cli.errors import InputWrong
from pagefleet_cli.simulation import Balancing, EngineModel, FleetModel
from pagefleet_operator.autoscaling import Policy

_BLOCK_TOKENS = 16
START_P50_S, START_P95_S = 60.0, 90.0
SLO_S = 2.0


class Options(NamedTuple):
    """What the command line says of the fleet; None: as the file says, else the default."""

    costs: Path | None = None
    kv_tokens: int | None = None
    start_p50_s: float | None = None
    start_p95_s: float | None = None
    initial_replicas: int | None = None
    balancing: str = Balancing.LEAST_LOAD.value
    gpus_per_pod: int | None = None
    slo_s: float | None = None


class Rehearsed(NamedTuple):
    """What one file asks for."""

    name: str
    policy: Policy | int
    """A number of pods where the service is not scaled."""
    fleet: FleetModel
    gpus_per_pod: int
    slo_s: float


def read(file: str, options: Options) -> Rehearsed:
    """The one InferenceService of a file, or a bare `autoscaling` section. Raises InputWrong."""
    documents = read_documents(file, _as_object)
    if len(documents) > 1:
        names = ", ".join(document.service.name for document in documents)
        raise InputWrong(f"{file}: {names} are {len(documents)} services; give a file with the one to simulate")
    service, status = documents[0].service, _status(documents[0])
    scaling = service.spec.autoscaling
    if scaling is not None and scaling.external:
        raise InputWrong(
            f"{file}: autoscaling.mode is External, so another program decides; give a policy with mode Builtin"
        )
    policy = Policy.of(service)
    if policy is None and service.spec.replicas == 0:
        raise InputWrong(f"{file}: spec.replicas is 0, so nothing would serve; set spec.autoscaling or 1 and more")
    return Rehearsed(
        name=Path(file).name,
        policy=service.spec.replicas if policy is None else policy,
        fleet=_fleet(service, status, options),
        gpus_per_pod=options.gpus_per_pod or max(service.spec.gpu_count * service.spec.engine.parallelism.pipeline, 1),
        slo_s=options.slo_s or (policy and policy.ttft_target_s) or SLO_S,
    )


def _as_object(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """An `autoscaling` section alone, with or without its name, becomes that of a plain service."""
    scaling = body.get("autoscaling", body if "maxReplicas" in body else None)
    if "kind" in body or not isinstance(scaling, Mapping):
        return body
    spec = {"model": {"uri": "file:///model"}, "autoscaling": scaling}
    meta = {"name": "policy", "namespace": "default", "uid": ""}
    return {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "metadata": meta, "spec": spec}


def _status(document: Document) -> Status:
    """What a live object tells; none where it was written by hand."""
    try:
        return Status.model_validate(document.body.get("status") or {})
    except ValidationError:
        return Status()


def _fleet(service: InferenceService, status: Status, options: Options) -> FleetModel:
    engine, demand, costs = service.spec.engine, demand_of(service.spec), _costs(options.costs)
    measured = status.capacity.measured if status.capacity else None
    told = costs.num_kv_blocks * _BLOCK_TOKENS if measured is None else measured.kv_tokens
    p50_s, p95_s = _starts(status, options)
    queued = engine.max_queued_requests
    return FleetModel(
        engine=EngineModel(
            costs=costs,
            kv_tokens=options.kv_tokens or told,
            max_num_seqs=engine.max_num_seqs,
            max_queued_requests=1024 if queued is None else queued,
            max_model_len=engine.max_model_len,
            max_num_batched_tokens=demand.max_num_batched_tokens,
        ),
        start_p50_s=p50_s,
        start_p95_s=p95_s,
        drain_timeout_s=service.spec.drain.timeout_seconds,
        initial_replicas=options.initial_replicas,
        balancing=Balancing(options.balancing),
    )


def _starts(status: Status, options: Options) -> tuple[float, float]:
    """How long half and 95 of 100 starts take: as said, else as measured, else a guess."""
    told = None if status.cold_start is None else status.cold_start.expected
    p50_s, p95_s = (START_P50_S, START_P95_S) if told is None else (float(told.p50_seconds), float(told.p95_seconds))
    if options.start_p50_s is not None:
        p95_s = p95_s * options.start_p50_s / p50_s if p50_s else options.start_p50_s
        p50_s = options.start_p50_s
    if options.start_p95_s is not None:
        p95_s = options.start_p95_s
    if p95_s < p50_s:
        raise InputWrong(f"--cold-start-p95: {p95_s:g} s is below --cold-start, {p50_s:g} s; give at least that")
    return p50_s, p95_s


def _costs(path: Path | None) -> StepCosts:
    if path is None:
        return step_costs.default()
    try:
        return step_costs.parse(path.read_bytes())
    except OSError as error:
        raise InputWrong(f"--costs: {path}: {error.strerror}") from error
    except step_costs.CostsUnusable as error:
        raise InputWrong(f"--costs: {path}: {error}") from error
