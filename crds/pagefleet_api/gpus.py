"""How many GPUs a pod gets, and of which kind."""

from collections.abc import Collection
from enum import StrEnum

from pydantic import Field

from pagefleet_api.schema import Model, Rule

MOST = 64
"""GPUs of one pod: more than any machine has."""
RESOURCE = "nvidia.com/gpu"


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
        description="GPUs of one pod that share each layer; their number is resources.gpu.count. Default: 1.",
    )


class Gpu(Model):
    """GPUs of each pod, requested and limited to the same number, as Kubernetes wants it."""

    count: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="GPUs of each pod. Default: engine.parallelism.tensor; none when engine.device is cpu, or is auto "
        "and nothing is said of GPUs.",
    )
    resource_name: str = Field(
        RESOURCE,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="The nodes' name for them, as their device plugin has it, for example nvidia.com/mig-3g.40gb. "
        f"Default: {RESOURCE}.",
    )


def count(device: Device, tensor: int, given: int | None) -> int:
    """GPUs of each pod; `given` is resources.gpu.count."""
    if given is not None:
        return given
    return tensor if device is Device.CUDA or tensor > 1 else 0


def refusal(device: Device, tensor: int, gpu: Gpu, others: Collection[str]) -> str | None:
    """What is wrong with these fields together, as the API server would say it; None when nothing is.

    others: the names in resources.requests and resources.limits.
    """
    if device in WITHOUT_GPU and (tensor > 1 or gpu.count):
        return f"engine.device: {device} {_NO_GPU}"
    nothing = gpu.count == 0 and device is not Device.CUDA and tensor == 1
    if gpu.count is not None and gpu.count != tensor and not nothing:
        return f"resources.gpu.count {gpu.count} {_SAME_COUNT}, which is {tensor}"
    if count(device, tensor, gpu.count) and gpu.resource_name in others:
        return f"{gpu.resource_name} {_NAMED_ONCE}"
    return None


_NO_GPU = "takes no GPU: leave resources.gpu and engine.parallelism out, or set engine.device: cuda"
_SAME_COUNT = "must be engine.parallelism.tensor"
_NAMED_ONCE = "must not be in resources.limits or resources.requests: resources.gpu says how many GPUs a pod gets"

_DEVICE = "(has(self.engine) && has(self.engine.device) ? self.engine.device : 'auto')"
_TENSOR = (
    "(has(self.engine) && has(self.engine.parallelism) && has(self.engine.parallelism.tensor) "
    "? self.engine.parallelism.tensor : 1)"
)
_HAS_GPU = "(has(self.resources) && has(self.resources.gpu))"
_HAS_COUNT = f"({_HAS_GPU} && has(self.resources.gpu.count))"
_NAME = f"({_HAS_GPU} && has(self.resources.gpu.resourceName) ? self.resources.gpu.resourceName : '{RESOURCE}')"


def _absent(part: str) -> str:
    return f"(!has(self.resources.{part}) || !({_NAME} in self.resources.{part}))"


RULES = (
    Rule(
        f"!({_DEVICE} in ['cpu', 'paced']) || ({_TENSOR} == 1 && !({_HAS_COUNT} && self.resources.gpu.count > 0))",
        f"engine.device: cpu or paced {_NO_GPU}",
        f"'engine.device: ' + {_DEVICE} + ' {_NO_GPU}'",
    ),
    Rule(
        f"!{_HAS_COUNT} || {_DEVICE} in ['cpu', 'paced'] || self.resources.gpu.count == {_TENSOR} "
        f"|| (self.resources.gpu.count == 0 && {_DEVICE} != 'cuda' && {_TENSOR} == 1)",
        f"resources.gpu.count {_SAME_COUNT}, which is 1 where it is absent",
    ),
    Rule(
        f"!has(self.resources) || !({_DEVICE} == 'cuda' || {_TENSOR} > 1 "
        f"|| ({_HAS_COUNT} && self.resources.gpu.count > 0)) || ({_absent('limits')} && {_absent('requests')})",
        f"resources.gpu.resourceName {_NAMED_ONCE}",
        f"{_NAME} + ' {_NAMED_ONCE}'",
    ),
)
"""For the API server, on the whole spec."""
