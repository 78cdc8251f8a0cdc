"""What any one InferenceService may cost whoever reads it, as every pass over it does."""

import time
from typing import Any

import pytest

from pagefleet_api.pod_patch import MOST_ITEMS
from pagefleet_api.service import InferenceService, InvalidService

_BYTES = 1_400_000
"""About the most that an object may have."""
_VALID_BYTES = 185_000
"""Of a podTemplate that is not too large."""
_LIMIT_S = 0.5
"""Some five times what the slowest takes on an idle machine."""


def _parse(spec: dict[str, Any]) -> InferenceService:
    spec = {"model": {"uri": "pkg://m"}, **spec}
    return InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": spec})


def _pod(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": fields}}


def _wide(size_bytes: int) -> dict[str, Any]:
    return {f"{index:06}": 0 for index in range(size_bytes // 11)}


def _nested(levels: int, inner: Any, name: str = "a") -> Any:
    for _ in range(levels):
        inner = {name: inner}
    return inner


def _again(times: int) -> dict[str, Any]:
    """As the aliases of a YAML file make it."""
    inner: dict[str, Any] = {}
    for _ in range(times):
        inner = {"a": inner, "b": inner}
    return inner


def _engine(**fields: Any) -> dict[str, Any]:
    return _pod(containers=[{"name": "engine", **fields}])


def _behavior(policies: Any) -> dict[str, Any]:
    return {"autoscaling": {"maxReplicas": 2, "behavior": {"scaleUp": {"policies": policies}}}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one wide map": (_pod(x=_wide(_BYTES)), "has more than 20000 fields and items in all; move data to a ConfigMap"),
    "deeper than can be written": (_pod(x=_nested(5_000, {})), "more than 32 levels deep"),
    "a long name": (_pod(x={"a" * _BYTES: 0}), "bytes as JSON, and 196608 are the most"),
    "a long text": (_pod(nodeSelector="a" * _VALID_BYTES), "spec.nodeSelector must be an object, but it is 'aaa"),
    "a name in lines": (_pod(nodeSelector={"a\nb": 1}), r"spec.nodeSelector.a\nb must be a string, but it is 1"),
    "names too long for any field": (_pod(x={"a" * 513: 0}), "is no name of a field: 512 characters are the most"),
    "names that must stay": (
        _pod(x=_wide(_VALID_BYTES // 2) | {"$retainKeys": [*map(str, range(9_000))]}),
        "spec.x: 000000 is set and not in $retainKeys",
    ),
    "too many variables": (
        _engine(env=[{"name": str(index)} for index in range(MOST_ITEMS + 1)]),
        "spec.containers[0].env has 1001 items, and 1000 are the most; leave the others out",
    ),
    "a list of nothing": (_behavior([{}] * (_BYTES // 3)), "scaleUp.policies has 466666 items, and 100 are more than"),
    "lists without items": (
        _pod(x=[[]] * (_VALID_BYTES // 3)),
        "it has more than 20000 fields and items in all; move data to a ConfigMap",
    ),
    "a long list's items": (_behavior([0] * 100), "80 more like these"),
    "nesting beside it": ({"autoscaling": _nested(5_000, {})}, "is nested more than 32 levels deep, which no field is"),
    "one part again and again": (_pod(x=_again(30)), "has more than 20000 fields and items in all"),
    "the same beside it": ({"autoscaling": _again(30)}, "spec has more than 20000 fields and items beside podTemplate"),
    "more than a workload can keep": (
        {
            "model": {
                "uri": "file:///m",
                "adapters": [{"name": f"a{number}", "uri": f"pvc://c/{chr(0x1F600) * 2_000}"} for number in range(32)],
            }
        },
        "bytes as JSON together, and 245760 are the most; shorten URIs and extraArgs, or move data of podTemplate",
    ),
    "a long value": (
        {"replicas": "a" * _BYTES},
        "spec.replicas: must be a whole number from 0 to 10000",
    ),
    "a long quantity": (
        {"resources": {"limits": {"cpu": "a" * _BYTES}}},
        "spec.resources.limits.cpu: must be",
    ),
    "a long name of a resource": ({"resources": {"limits": {"a" * _BYTES: "-"}}}, "spec.resources.limits.aaa"),
}
TAKEN: dict[str, dict[str, Any]] = {
    "long paths of many adapters": {
        "model": {
            "uri": "file:///m",
            "adapters": [{"name": f"a{number}", "uri": f"pvc://c/{'a' * 2_000}"} for number in range(32)],
        }
    },
    "one wide map": _pod(x=_wide(_VALID_BYTES)),
    "lists without items": _pod(x=[[]] * 19_000),
    "maps without fields": _pod(x=[{}] * 19_000),
    "far down": _pod(x=_nested(28, [[]] * 19_000, name="a" * 500)),
    "as many variables as can be": _engine(env=[{"name": str(index), "value": "v" * 99} for index in range(1_000)]),
}


def _timed_s(spec: dict[str, Any]) -> tuple[float, str]:
    begun_s = time.process_time()
    try:
        _parse(spec)
    except InvalidService as refusal:
        return time.process_time() - begun_s, str(refusal)
    return time.process_time() - begun_s, ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_costs_little_and_is_told_briefly(name: str) -> None:
    spec, words = REFUSED[name]
    took_s, said = _timed_s(spec)
    assert words in said
    assert len(said) < 25_000 and len(said.splitlines()) <= 21, f"{len(said)} characters, {said.count(chr(10))} breaks"
    assert took_s < _LIMIT_S, f"{took_s:.2f} s of CPU"


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_costs_little_too(name: str) -> None:
    took_s, said = _timed_s(TAKEN[name])
    assert not said
    assert took_s < _LIMIT_S, f"{took_s:.2f} s of CPU"


@pytest.mark.parametrize("spec", [5, "spec", [1], [[]] * 200])
def test_a_spec_that_is_no_object_is_refused_too(spec: Any) -> None:
    with pytest.raises(InvalidService, match="spec"):
        InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": spec})
