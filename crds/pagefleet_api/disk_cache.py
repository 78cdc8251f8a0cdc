"""`spec.engine.kvCache.diskOffload`: blocks of the KV cache on the node's disk, in storage that ends with the pod.

A pod that outgrows its storage is evicted with the answers that it has, so only an engine that keeps to a limit of its
own has this field.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pagefleet_api import quantity
from pagefleet_api.schema import Rule, Text, Within, joint

STORAGE = "ephemeral-storage"
"""Kubernetes' name for what containers, their logs and volumes of this kind take of a node's disk."""

DiskSize = Annotated[Text, Within(least="1Gi", most="1Pi", example="200Gi")]

NEEDS_HOST = (
    "engine.kvCache.diskOffload {} needs engine.kvCache.hostOffload: blocks reach the disk through the pod's memory; "
    "with engine.runtime sglang give hostOffload too, for example 32Gi; with any other leave diskOffload out"
)
HOST_RULE = joint(
    "!has(self.diskOffload) || has(self.hostOffload)", NEEDS_HOST, "self.diskOffload", field="diskOffload"
)
"""On the KV cache."""
_ADAPTERS = (
    "engine.kvCache.diskOffload {} is not available with model.adapters: SGLang finds blocks on the disk by their "
    "tokens alone, so that one adapter would be given what another one has computed; leave one of them out"
)
"""Source: sgl-project/sglang#38577, which came in September 2026; the operator cannot tell whether an image has it."""

_DISK = "string(self.engine.kvCache.diskOffload)"
_FIELD = "engine.kvCache.diskOffload"
_REQUEST = (
    f"{_FIELD} {{}} must not be above resources.requests.{STORAGE} {{}}, by which pods get their nodes; raise the "
    "request, or leave it out"
)
_LIMIT = (
    f"{_FIELD} {{}} must be below resources.limits.{STORAGE} {{}}, which it is a part of; raise the limit or lower "
    "diskOffload"
)


def _rule(part: str, sound: str, words: str) -> Rule:
    amount = f"string(self.resources.{part}['{STORAGE}'])"
    return joint(
        "!has(self.engine) || !has(self.engine.kvCache) || !has(self.engine.kvCache.diskOffload) "
        f"|| !has(self.resources) || !has(self.resources.{part}) || !('{STORAGE}' in self.resources.{part}) "
        f"|| !isQuantity({_DISK}) || !isQuantity({amount}) || {sound.format(disk=_DISK, amount=amount)}",
        words,
        *(_DISK, amount),
        field=_FIELD,
    )


RULES = (
    joint(
        "!has(self.engine) || !has(self.engine.kvCache) || !has(self.engine.kvCache.diskOffload) "
        "|| !has(self.model.adapters) || size(self.model.adapters) == 0",
        _ADAPTERS,
        _DISK,
        field=_FIELD,
    ),
    _rule("requests", "!quantity({disk}).isGreaterThan(quantity({amount}))", _REQUEST),
    _rule("limits", "quantity({disk}).isLessThan(quantity({amount}))", _LIMIT),
)
"""For the API server, on the whole spec."""


def refusals(
    disk: str | None, requests: Mapping[str, str], limits: Mapping[str, str], *, adapters: bool
) -> Iterator[str]:
    """Why pods with these resources have no room for it, or with adapters no use, as the API server would say it."""
    if disk is None:
        return
    if adapters:
        yield _ADAPTERS.format(disk)
    request, limit = requests.get(STORAGE), limits.get(STORAGE)
    if request is not None and quantity.parse(disk) > quantity.parse(request):
        yield _REQUEST.format(disk, request)
    if limit is not None and quantity.parse(disk) >= quantity.parse(limit):
        yield _LIMIT.format(disk, limit)
