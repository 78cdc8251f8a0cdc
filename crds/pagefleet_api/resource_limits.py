"""Requests above their limits, which no pod may have: refused where they are written, and not only when a pod is made.

Source: `ValidateContainerResourceRequirements` in kubernetes/pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_api import quantity
from pagefleet_api.schema import Rule

MOST_NAMES = 32
"""In requests or limits: a pod has a handful, and the API server must know how long its rules take."""


def above_limits(requests: Any, limits: Any, path: str) -> Iterator[str]:
    """What is wrong with these maps of quantities, `path` before their names. What is no quantity is not judged."""
    if not isinstance(requests, Mapping) or not isinstance(limits, Mapping):
        return
    for name, wanted in requests.items():
        try:
            above = name in limits and quantity.parse(str(wanted)) > quantity.parse(str(limits[name]))
        except ValueError:
            continue
        if above:
            yield f"{path}requests.{name} {wanted} is above {path}limits.{name} {limits[name]}; {_WAY_OUT}"


def host_cache_refusal(host: str | None, limits: Mapping[str, str]) -> str | None:
    """Why so much memory for KV blocks of the host cannot be in a pod with these limits; None where it can."""
    limit = limits.get("memory")
    if host is None or limit is None or quantity.parse(host) < quantity.parse(limit):
        return None
    return f"engine.kvCache.hostOffload {host} must be below resources.limits.memory {limit}{_PART}"


def host_shares_refusal(host: str | None, ranks: int) -> str | None:
    """Why `ranks` processes, each of which takes whole gigabytes, cannot share so much memory; None where they can."""
    if host is None or quantity.to_bytes(host) >= ranks * 10**9:
        return None
    return (
        f"engine.kvCache.hostOffload {host}: sglang takes whole gigabytes for each of the {ranks} GPUs of "
        f"parallelism.tensor; give at least {ranks}G"
    )


_PART = ", which it is a part of; raise the limit or lower hostOffload"
_HOST, _MEMORY = "string(self.engine.kvCache.hostOffload)", "string(self.resources.limits['memory'])"
HOST_CACHE_RULE = Rule(
    "!has(self.engine) || !has(self.engine.kvCache) || !has(self.engine.kvCache.hostOffload) || !has(self.resources) "
    "|| !has(self.resources.limits) || !('memory' in self.resources.limits) "
    f"|| !isQuantity({_HOST}) || !isQuantity({_MEMORY}) || quantity({_HOST}).isLessThan(quantity({_MEMORY}))",
    f"engine.kvCache.hostOffload must be below resources.limits.memory{_PART}",
    f"'engine.kvCache.hostOffload ' + {_HOST} + ' must be below resources.limits.memory ' + {_MEMORY} + '{_PART}'",
)
"""For the API server, on the whole spec."""

_WAY_OUT = "lower the request or raise the limit"
_BOTH = "has(self.requests) && has(self.limits)"
_TOLD = ("cpu", "memory")
"""With their amounts in the refusal. Names that users choose may be of any length, so that it would take too long."""


def _above(name: str) -> str:
    """CEL: the request of that name, an expression, is above its limit."""
    request, limit = f"string(self.requests[{name}])", f"string(self.limits[{name}])"
    both = f"{name} in self.requests && {name} in self.limits && isQuantity({request}) && isQuantity({limit})"
    return f"{both} && quantity({request}).isGreaterThan(quantity({limit}))"


def _rule(name: str) -> Rule:
    told = f"'resources.requests.{name} ' + string(self.requests['{name}']) + ' is above resources.limits.{name} '"
    return Rule(
        f"!({_BOTH} && {_above(repr(name))})",
        f"resources.requests.{name} is above resources.limits.{name}; {_WAY_OUT}",
        f"{told} + string(self.limits['{name}']) + '; {_WAY_OUT}'",
    )


RULES = (
    *map(_rule, _TOLD),
    Rule(
        f"!({_BOTH} && self.requests.exists(name, !(name in {list(_TOLD)}) && {_above('name')}))",
        f"resources.requests is above resources.limits of the same name; {_WAY_OUT}",
    ),
)
"""For the API server, on the resources."""
