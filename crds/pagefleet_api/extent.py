"""How large a spec may be: what would take long to look at, and what would not fit where it is kept. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_api.wording import place

_MOST_ITEMS = 100
"""Of any list or map outside podTemplate: more than each of them takes, so that what is wrong can be told briefly."""
_MOST_PARTS, _LEVELS = 20_000, 32
"""Fields and items in all, and how deep they are nested."""
KEPT = ("model", "engine", "resources", "drain", "podTemplate")
"""What of a spec pods are made from."""
_KEPT_BYTES = 240 * 1024
"""A workload keeps it in an annotation, and all annotations of an object may have 256 KiB.
Source: TotalAnnotationSizeLimitB in k8s.io/apimachinery, pkg/api/validation/objectmeta.go."""


def faults(spec: Any) -> Iterator[str]:
    """What would take long to look at: the API server's schema has its own bounds, a file on a disk has none."""
    layer: list[tuple[tuple[str | int, ...], Any]] = [((), spec)] if isinstance(spec, Mapping | list) else []
    left = _MOST_PARTS
    for _ in range(_LEVELS):
        inner: list[tuple[tuple[str | int, ...], Any]] = []
        for path, value in layer:
            if len(value) > _MOST_ITEMS:
                more = f"and {_MOST_ITEMS} are more than it can take; leave the others out"
                yield f"{place(path, 'spec')} has {len(value)} items, {more}"
            left -= len(value)
            if left < 0:
                yield f"spec has more than {_MOST_PARTS} fields and items beside podTemplate; leave some out"
                return
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            inner += [((*path, name), part) for name, part in parts if isinstance(part, Mapping | list)]
        layer = [(path, value) for path, value in inner if path != ("podTemplate",)]
    for path, _ in layer[:1]:
        yield f"{place(path, 'spec')} is nested more than {_LEVELS} levels deep, which no field is; leave it out"


def kept_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    """Whether what pods are made from is more than a workload can keep, in words; of a spec without other faults."""
    kept = {name: spec[name] for name in KEPT if name in spec}
    # a file on a disk may have names of fields that JSON has not, such as dates: those are no fields, and not kept
    text = json.dumps(kept, separators=(",", ":"), ensure_ascii=False, default=str, skipkeys=True)
    size_bytes = len(text.encode(errors="replace"))
    if size_bytes > _KEPT_BYTES:
        yield (
            f"spec: {', '.join(KEPT)} have {size_bytes} bytes as JSON together, and {_KEPT_BYTES} are the most; "
            "shorten URIs and extraArgs, or move data of podTemplate to a ConfigMap"
        )
