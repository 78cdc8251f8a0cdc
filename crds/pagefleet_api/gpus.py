"""How many GPUs a pod gets, and of which kind."""

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pagefleet_api import model_uri
from pagefleet_api.schema import LABEL_VALUE, SUBDOMAIN, Model, Shaped, joint

MOST = 64
"""GPUs of one pod: more than any machine has."""
MOST_STAGES = 64
RESOURCE = "nvidia.com/gpu"
ResourceName = Annotated[
    str,
    Field(max_length=253),
    Shaped(rf"^{SUBDOMAIN}/{LABEL_VALUE}$", f"DOMAIN/NAME as nodes have it, such as {RESOURCE}"),
]


class Device(StrEnum):
    """Where the model is computed."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    PACED = "paced"
    """Nothing is computed: steps take a GPU's time and tokens are random, to rehearse everything around them."""


WITHOUT_GPU = frozenset({Device.CPU, Device.PACED})


class Parallelism(Model):
    """How one copy of the model is shared out."""

    tensor: int = Field(
        1,
        ge=1,
        le=MOST,
        description="GPUs of one pod that share each layer. Default: 1.",
    )
    pipeline: int = Field(
        1,
        ge=1,
        le=MOST_STAGES,
        description="Pods that share one copy of the model, each with its part of the layers and `tensor` GPUs, on "
        "nodes of their own if need be. Above 1 a replica is a group of a LeaderWorkerSet. Default: 1.",
    )

    @property
    def gpus(self) -> int:
        """GPUs that share one copy of the model."""
        return self.tensor * self.pipeline


class Gpu(Model):
    """GPUs of each replica, requested and limited to the same number, as Kubernetes wants it."""

    count: int | None = Field(
        None,
        ge=0,
        le=MOST * MOST_STAGES,
        description="GPUs of each replica, of which each of its pods gets engine.parallelism.tensor. Default: tensor "
        "times pipeline; none when engine.device is cpu, or is auto and nothing is said of GPUs.",
    )
    resource_name: ResourceName = Field(
        RESOURCE,
        description="The nodes' name for them, as their device plugin has it, for example nvidia.com/mig-3g.40gb. "
        f"Default: {RESOURCE}.",
    )


def count(device: Device, parallelism: Parallelism, given: int | None) -> int:
    """GPUs of each pod; `given` is resources.gpu.count."""
    if given is not None:
        return given // parallelism.pipeline
    return parallelism.tensor if device is Device.CUDA or parallelism.gpus > 1 else 0


def refusals(device: Device, parallelism: Parallelism, gpu: Gpu, others: Collection[str]) -> Iterator[str]:
    """What is wrong with these fields together, as the API server would say it.

    others: the names in resources.requests and resources.limits.
    """
    if device in WITHOUT_GPU and (parallelism.gpus > 1 or gpu.count):
        yield _NO_GPU.format(device)
    nothing = gpu.count == 0 and device is not Device.CUDA and parallelism.tensor == 1
    if gpu.count is not None and gpu.count != parallelism.gpus and device not in WITHOUT_GPU and not nothing:
        yield _SAME_COUNT.format(gpu.count, parallelism.tensor, parallelism.pipeline)
    if (device is Device.CUDA or parallelism.gpus > 1 or gpu.count) and gpu.resource_name in others:
        yield _NAMED_ONCE.format(gpu.resource_name)


def group_refusals(parallelism: Parallelism, *, tried: bool, downloaded: bool) -> Iterator[str]:
    """What goes not together with groups of pods; `downloaded`: each pod would fetch the model itself."""
    if parallelism.pipeline > 1 and tried:
        yield _NO_TRIAL.format(parallelism.pipeline)
    if parallelism.pipeline > 1 and downloaded:
        yield _NO_DOWNLOAD.format(parallelism.pipeline)


_NO_GPU = "engine.device {} takes no GPU: leave resources.gpu and engine.parallelism out, or set engine.device: cuda"
_SAME_COUNT = (
    "resources.gpu.count {} must be engine.parallelism.tensor {} times pipeline {}; change one of them, or leave "
    "resources.gpu.count out"
)
_NAMED_ONCE = (
    "resources.gpu.resourceName {} must not be in resources.limits or resources.requests: resources.gpu says how many "
    "GPUs a pod gets; leave it out there"
)
_NO_TRIAL = (
    "rollout.analysis is not available with engine.parallelism.pipeline {}: a LeaderWorkerSet cannot be halted with "
    "groups of two templates; leave rollout.analysis out"
)
_NO_DOWNLOAD = (
    "model.cache.mode None is not available with engine.parallelism.pipeline {}: a group is made anew when one of "
    "its pods was restarted, and each would download the whole model again; give model.cache.mode PVC or Node, or a "
    "model.uri that is not downloaded"
)

_DEVICE = "(has(self.engine) && has(self.engine.device) ? self.engine.device : 'auto')"
_TENSOR, _PIPELINE = (
    f"(has(self.engine) && has(self.engine.parallelism) && has(self.engine.parallelism.{name}) "
    f"? self.engine.parallelism.{name} : 1)"
    for name in ("tensor", "pipeline")
)
_GPUS = f"({_TENSOR} * {_PIPELINE})"
_HAS_GPU = "(has(self.resources) && has(self.resources.gpu))"
_HAS_COUNT = f"({_HAS_GPU} && has(self.resources.gpu.count))"
_NAME = f"({_HAS_GPU} && has(self.resources.gpu.resourceName) ? self.resources.gpu.resourceName : '{RESOURCE}')"


def _absent(part: str) -> str:
    return f"(!has(self.resources.{part}) || !({_NAME} in self.resources.{part}))"


RULES = (
    joint(
        f"!({_DEVICE} in ['cpu', 'paced']) || ({_GPUS} == 1 && !({_HAS_COUNT} && self.resources.gpu.count > 0))",
        _NO_GPU,
        _DEVICE,
        plain=_NO_GPU.format("cpu or paced"),
        field="engine.device",
    ),
    joint(
        f"!{_HAS_COUNT} || {_DEVICE} in ['cpu', 'paced'] || self.resources.gpu.count == {_GPUS} "
        f"|| (self.resources.gpu.count == 0 && {_DEVICE} != 'cuda' && {_TENSOR} == 1)",
        _SAME_COUNT,
        *("self.resources.gpu.count", _TENSOR, _PIPELINE),
        field="resources.gpu.count",
    ),
    joint(
        f"!has(self.resources) || !({_DEVICE} == 'cuda' || {_GPUS} > 1 "
        f"|| ({_HAS_COUNT} && self.resources.gpu.count > 0)) || ({_absent('limits')} && {_absent('requests')})",
        _NAMED_ONCE,
        _NAME,
        field="resources.gpu.resourceName",
    ),
    joint(
        f"{_PIPELINE} == 1 || !has(self.rollout) || !has(self.rollout.analysis)",
        _NO_TRIAL,
        _PIPELINE,
        plain=_NO_TRIAL.format("above 1"),
        field="rollout.analysis",
    ),
    joint(
        f"{_PIPELINE} == 1 || (has(self.model.cache) && has(self.model.cache.mode) && self.model.cache.mode != 'None') "
        f"|| !{model_uri.cel_downloads('self.model')}",
        _NO_DOWNLOAD,
        _PIPELINE,
        plain=_NO_DOWNLOAD.format("above 1"),
        field="model.cache.mode",
    ),
)
"""For the API server, on the whole spec."""
