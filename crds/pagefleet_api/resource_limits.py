"""Requests above their limits, which no pod may have: refused where they are written, and not only when a pod is made.

Source: `ValidateContainerResourceRequirements` in kubernetes/pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_api import quantity
from pagefleet_api.schema import Rule, joint, told

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
            yield path + _ABOVE.format(name, wanted, f"{path}limits.{name}", limits[name])


def host_cache_refusals(host: str | None, limits: Mapping[str, str]) -> Iterator[str]:
    """Why so much memory for KV blocks of the host cannot be in a pod with these limits."""
    limit = limits.get("memory")
    if host is not None and limit is not None and quantity.parse(host) >= quantity.parse(limit):
        yield _PART.format(host, limit)


def host_shares_refusals(host: str | None, ranks: int) -> Iterator[str]:
    """Why `ranks` processes of SGLang, each of which takes whole gigabytes, cannot share so much memory."""
    if host is not None and quantity.to_bytes(host) < ranks * 10**9:
        yield _SHARES.format(host, ranks, ranks)


_SHARES = (
    "engine.kvCache.hostOffload {}: sglang takes whole gigabytes for each of the {} GPUs of parallelism.tensor; give "
    "at least {}G"
)
_SHARED = "string(self.kvCache.hostOffload)"
_RANKS = "(has(self.parallelism) && has(self.parallelism.tensor) ? self.parallelism.tensor : 1)"
HOST_SHARES_RULE = joint(
    "!has(self.runtime) || self.runtime != 'sglang' || !has(self.kvCache) || !has(self.kvCache.hostOffload) "
    f"|| !isQuantity({_SHARED}) || quantity({_SHARED}).asApproximateFloat() >= 1000000000.0 * double({_RANKS})",
    _SHARES,
    *(_SHARED, _RANKS, _RANKS),
    field="kvCache.hostOffload",
    plain="engine.kvCache.hostOffload: sglang takes whole gigabytes for each of the GPUs of parallelism.tensor; give "
    "at least so many",
)
"""For the API server, on the engine."""
_PART = (
    "engine.kvCache.hostOffload {} must be below resources.limits.memory {}, which it is a part of; raise the limit or "
    "lower hostOffload"
)
_HOST, _MEMORY = "string(self.engine.kvCache.hostOffload)", "string(self.resources.limits['memory'])"
HOST_CACHE_RULE = joint(
    "!has(self.engine) || !has(self.engine.kvCache) || !has(self.engine.kvCache.hostOffload) || !has(self.resources) "
    "|| !has(self.resources.limits) || !('memory' in self.resources.limits) "
    f"|| !isQuantity({_HOST}) || !isQuantity({_MEMORY}) || quantity({_HOST}).isLessThan(quantity({_MEMORY}))",
    _PART,
    *(_HOST, _MEMORY),
    field="engine.kvCache.hostOffload",
)
"""For the API server, on the whole spec."""

_ABOVE = "requests.{} {} is above {} {}; lower the request or raise the limit"
_BOTH = "has(self.requests) && has(self.limits)"
_IS_ABOVE = (
    "name in self.limits && isQuantity(string(self.requests[name])) && isQuantity(string(self.limits[name])) "
    "&& quantity(string(self.requests[name])).isGreaterThan(quantity(string(self.limits[name])))"
)
_FIRST = f"self.requests.filter(name, {_IS_ABOVE})[0]"
RULE = Rule(
    f"!({_BOTH}) || !self.requests.exists(name, {_IS_ABOVE})",
    "resources.requests is above resources.limits of the same name; lower the request or raise the limit",
    told(
        f"resources.{_ABOVE}",
        *(_FIRST, f"self.requests[{_FIRST}]", f"'resources.limits.' + {_FIRST}", f"self.limits[{_FIRST}]"),
    ),
    field="requests",
)
"""For the API server, on the resources."""
