"""What of `spec.engine` goes with which engine: the same refusals for the API server (CEL) and for the parser."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pagefleet_api.knobs import INSTEAD, Knob
from pagefleet_api.runtimes import OWNED_FLAGS, TRAITS, UNTOLD, Runtime
from pagefleet_api.scheduling import DEFAULT as DEFAULT_POLICY
from pagefleet_api.schema import Rule, joint

NO_METHOD = "none"
"""What every engine takes where a method is asked: it is as if the field were left out."""
_AS_LEFT_OUT = {
    Knob.QUANTIZATION: NO_METHOD,
    Knob.SPECULATIVE: NO_METHOD,
    Knob.SCHEDULING: DEFAULT_POLICY,
}
PARTS_WITHOUT_VALUE = (Knob.CHAT_TEMPLATE, Knob.API_KEYS)
"""Fields that are objects: their value is no word for a message."""

_RUNTIME = "(has(self.runtime) ? self.runtime : 'pagefleet')"
_OWNED = f"^({'|'.join(OWNED_FLAGS)})(=.*)?$"
_NO_IMAGE = "engine.image is required with engine.runtime {}, as no image comes with Pagefleet for it; for example {}"
_CUSTOM_NEEDED = (
    "engine.custom is required with engine.runtime custom: it says where the engine listens; for example {port: 8000}"
)
_CUSTOM_ONLY = (
    "engine.custom is for engine.runtime custom, not for engine.runtime {}; leave it out, or set engine.runtime: custom"
)
_PACED = "engine.device paced is not available with engine.runtime {}; use engine.runtime pagefleet"
_CPU = "engine.device cpu is not available with engine.runtime {}; use cuda or auto"
_PIPELINE = (
    "engine.parallelism.pipeline {} is not available with engine.runtime {}; use engine.parallelism.tensor on the GPUs "
    "of one node, or engine.runtime vllm or sglang"
)
_OTHER_DTYPE = "engine.dtype {} is not available with engine.runtime {}; use {}"
_OWN_FLAG = (
    "engine.extraArgs must not have {}: the operator gives that flag; use model.servedName and the fields of engine"
)
_UNTOLD = "autoscaling.metrics: {} is not told by engine.runtime {}; use WaitingRequests and InFlightRequests"


def _untold(kind: str, runtimes: Iterable[Runtime]) -> Rule:
    return joint(
        "!has(self.autoscaling) || !has(self.autoscaling.metrics) || !has(self.engine) || !has(self.engine.runtime) "
        f"|| !(self.engine.runtime in [{_quoted(each for each in Runtime if each in runtimes)}]) "
        f"|| !self.autoscaling.metrics.exists(each, each.type == '{kind}')",
        _UNTOLD,
        *(f"'{kind}'", "self.engine.runtime"),
        field="autoscaling.metrics",
        plain=_UNTOLD.format(kind, _or(each for each in Runtime if each in runtimes)),
    )


_IN_IMAGE = (
    "model.uri {}: pkg:// is for engine.runtime pagefleet, not for engine.runtime {}; use file:///PATH, a path in the "
    "image"
)
_COLON = (
    "model.servedName {} must not have a colon with engine.runtime sglang, where one stands between a model's name and "
    "its adapter's; give a name without one"
)


def model_refusals(uri: str, served_name: str | None, runtime: Runtime) -> Iterator[str]:
    """Why that engine cannot load a model from there, or serve it by that name."""
    if uri.startswith("pkg://") and runtime is not Runtime.PAGEFLEET:
        yield _IN_IMAGE.format(uri, runtime)
    if runtime is Runtime.SGLANG and ":" in (served_name or ""):
        yield _COLON.format(served_name)


def metric_refusals(kinds: Iterable[str], runtime: Runtime) -> Iterator[str]:
    """Which of these metrics of an autoscaler that engine never tells."""
    for kind in kinds:
        if runtime in UNTOLD.get(kind, ()):
            yield _UNTOLD.format(kind, runtime)


def service_cel() -> tuple[Rule, ...]:
    """The same for the API server, on the whole spec.

    Source of names without a colon: `check_server_args` in sglang/srt/server_args.py (0.5.11).
    """
    return (
        joint(
            "!self.model.uri.startsWith('pkg://') || !has(self.engine) || !has(self.engine.runtime) "
            "|| self.engine.runtime == 'pagefleet'",
            _IN_IMAGE,
            *("self.model.uri", "self.engine.runtime"),
            field="model.uri",
            plain="model.uri pkg:// is for engine.runtime pagefleet alone; use file:///PATH, a path in the image",
        ),
        joint(
            "!has(self.model.servedName) || !self.model.servedName.contains(':') || !has(self.engine) "
            "|| !has(self.engine.runtime) || self.engine.runtime != 'sglang'",
            _COLON,
            "self.model.servedName",
            field="model.servedName",
        ),
        *(_untold(kind, runtimes) for kind, runtimes in UNTOLD.items()),
    )


def refusals(engine: Mapping[str, Any]) -> Iterator[str]:
    """Every problem of an engine as the user wrote it (wire names, only what was given)."""
    runtime = Runtime(engine.get("runtime") or Runtime.PAGEFLEET)
    traits = TRAITS[runtime]
    for knob in Knob:
        value = _value(engine, knob)
        if value not in (None, _AS_LEFT_OUT.get(knob)) and knob not in traits.knobs:
            yield _knob_words(knob, value, runtime)
    dtype = engine.get("dtype")
    if dtype is not None and Knob.DTYPE in traits.knobs and dtype not in traits.dtypes:
        yield _OTHER_DTYPE.format(dtype, runtime, _or(traits.dtypes))
    if engine.get("device") == "cpu" and not traits.on_cpu:
        yield _CPU.format(runtime)
    if engine.get("device") == "paced" and runtime is not Runtime.PAGEFLEET:
        yield _PACED.format(runtime)
    stages = (engine.get("parallelism") or {}).get("pipeline") or 1
    if stages > 1 and not traits.pipelines:
        yield _PIPELINE.format(stages, runtime)
    if traits.image is not None and engine.get("image") is None:
        yield _NO_IMAGE.format(runtime, traits.image)
    if runtime is Runtime.CUSTOM and engine.get("custom") is None:
        yield _CUSTOM_NEEDED
    if runtime is not Runtime.CUSTOM and engine.get("custom") is not None:
        yield _CUSTOM_ONLY.format(runtime)
    extra = () if runtime is Runtime.CUSTOM else engine.get("extraArgs") or ()
    for argument in (each for each in extra if re.match(_OWNED, each)):
        yield _OWN_FLAG.format(argument)


def cel() -> tuple[Rule, ...]:
    """The same rules on the schema of `spec.engine`."""
    return (
        *(_knob_rule(knob) for knob in Knob if _without(knob)),
        _dtype_rule(),
        _cpu_rule(),
        _pipeline_rule(),
        joint(
            f"!has(self.device) || self.device != 'paced' || {_RUNTIME} == 'pagefleet'",
            _PACED,
            _RUNTIME,
            field="device",
            plain=_PACED.format(_or(each for each in Runtime if each is not Runtime.PAGEFLEET)),
        ),
        _image_rule(),
        joint(f"{_RUNTIME} != 'custom' || has(self.custom)", _CUSTOM_NEEDED, field="custom"),
        joint(
            f"{_RUNTIME} == 'custom' || !has(self.custom)",
            _CUSTOM_ONLY,
            _RUNTIME,
            field="custom",
            plain=_CUSTOM_ONLY.format(_or(each for each in Runtime if each is not Runtime.CUSTOM)),
        ),
        joint(
            f"!has(self.extraArgs) || {_RUNTIME} == 'custom' || !self.extraArgs.exists(each, each.matches('{_OWNED}'))",
            _OWN_FLAG,
            f"self.extraArgs.filter(each, each.matches('{_OWNED}'))[0]",
            field="extraArgs",
            plain=_OWN_FLAG.format(_or(OWNED_FLAGS)),
        ),
    )


def _without(knob: Knob) -> list[Runtime]:
    return [runtime for runtime, traits in TRAITS.items() if knob not in traits.knobs]


def _value(engine: Mapping[str, Any], knob: Knob) -> Any:
    value: Any = engine
    for part in knob.split("."):
        value = (value or {}).get(part)
    return value


def _knob_words(knob: Knob, value: object, runtime: object) -> str:
    shown = "" if knob in PARTS_WITHOUT_VALUE else f" {value}"
    return f"engine.{knob}{shown} is not available with engine.runtime {runtime}; {INSTEAD[knob]}"


def _knob_rule(knob: Knob) -> Rule:
    lacking = _without(knob)
    values = (_RUNTIME,) if knob in PARTS_WITHOUT_VALUE else (f"self.{knob}", _RUNTIME)
    nothing = f" || self.{knob} == '{_AS_LEFT_OUT[knob]}'" if knob in _AS_LEFT_OUT else ""
    return joint(
        f"!{_has(knob)}{nothing} || !({_RUNTIME} in [{_quoted(lacking)}])",
        _knob_words(knob, "{}", "{}"),
        *values,
        field=knob,
        plain=f"engine.{knob} is not available with engine.runtime {_or(lacking)}; {INSTEAD[knob]}",
    )


def _has(path: str) -> str:
    parts = path.split(".")
    tests = [f"has(self.{'.'.join(parts[: depth + 1])})" for depth in range(len(parts))]
    return tests[0] if len(tests) == 1 else f"({' && '.join(tests)})"


def _dtype_rule() -> Rule:
    """Of engines that have the field; for others the field's own rule speaks."""
    limited = {runtime: traits for runtime, traits in TRAITS.items() if Knob.DTYPE in traits.knobs}
    allowed = " || ".join(
        f"({_RUNTIME} == '{runtime}' && self.dtype in [{_quoted(traits.dtypes)}])"
        for runtime, traits in limited.items()
    )
    others = f"!({_RUNTIME} in [{_quoted(limited)}])"
    known = ", ".join(f"'{runtime}': '{_or(traits.dtypes)}'" for runtime, traits in limited.items())
    return joint(
        f"!has(self.dtype) || {others} || {allowed}",
        _OTHER_DTYPE,
        *("self.dtype", _RUNTIME, f"{{{known}}}[{_RUNTIME}]"),
        field="dtype",
        plain="engine.dtype is not available with this engine.runtime; docs/runtimes.md has what each takes",
    )


def _cpu_rule() -> Rule:
    able = [runtime for runtime, traits in TRAITS.items() if traits.on_cpu]
    return joint(
        f"!has(self.device) || self.device != 'cpu' || {_RUNTIME} in [{_quoted(able)}]",
        _CPU,
        _RUNTIME,
        field="device",
        plain=_CPU.format(_or(each for each in Runtime if each not in able)),
    )


def _pipeline_rule() -> Rule:
    able = [runtime for runtime, traits in TRAITS.items() if traits.pipelines]
    return joint(
        "!has(self.parallelism) || !has(self.parallelism.pipeline) || self.parallelism.pipeline == 1 "
        f"|| {_RUNTIME} in [{_quoted(able)}]",
        _PIPELINE,
        *("self.parallelism.pipeline", _RUNTIME),
        field="parallelism.pipeline",
        plain=_PIPELINE.format("above 1", _or(each for each in Runtime if each not in able)),
    )


def _image_rule() -> Rule:
    foreign = {runtime: traits for runtime, traits in TRAITS.items() if traits.image is not None}
    examples = ", ".join(f"'{runtime}': '{traits.image}'" for runtime, traits in foreign.items())
    return joint(
        f"has(self.image) || !({_RUNTIME} in [{_quoted(foreign)}])",
        _NO_IMAGE,
        *(_RUNTIME, f"{{{examples}}}[{_RUNTIME}]"),
        field="image",
        plain=_NO_IMAGE.format(_or(foreign), " or ".join(filter(None, (each.image for each in foreign.values())))),
    )


def _quoted(words: Any) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _or(words: Any) -> str:
    return " or ".join(words)
