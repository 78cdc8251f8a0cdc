"""What of `spec.engine` goes with which engine: the same refusals for the API server (CEL) and for the parser."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pagefleet_api.knobs import INSTEAD, Knob
from pagefleet_api.runtimes import OWNED_FLAGS, TRAITS, UNTOLD, Runtime, Traits
from pagefleet_api.scheduling import DEFAULT as DEFAULT_POLICY
from pagefleet_api.schema import Rule

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
_IMAGE_NEEDED = "engine.image is required"
_NO_IMAGE = "no image comes with Pagefleet"
_CUSTOM_NEEDED = "engine.custom is required with engine.runtime custom: it says where the engine listens"
_CUSTOM_ONLY = "engine.custom is only for engine.runtime custom; leave it out, or set engine.runtime: custom"
_PACED = "engine.device paced is not available"
_PACED_INSTEAD = "use engine.runtime pagefleet"
_CPU = "engine.device: cpu is not available"
_PIPELINE = "engine.parallelism.pipeline"
_ONE_POD = "use engine.parallelism.tensor on the GPUs of one node, or engine.runtime vllm or sglang"
_OWNED_WORDS = (
    "engine.extraArgs must not have a flag that the operator gives itself "
    f"({', '.join(OWNED_FLAGS)}); use model.servedName and the fields of engine"
)


_UNTOLD = "use WaitingRequests and InFlightRequests"
METRIC_RULES = tuple(
    Rule(
        "!has(self.autoscaling) || !has(self.autoscaling.metrics) || !has(self.engine) || !has(self.engine.runtime) "
        f"|| !(self.engine.runtime in [{', '.join(repr(each.value) for each in Runtime if each in runtimes)}]) "
        f"|| !self.autoscaling.metrics.exists(each, each.type == '{kind}')",
        f"autoscaling.metrics: {kind} is not told by this engine.runtime; {_UNTOLD}",
        f"'autoscaling.metrics: {kind} is not told by engine.runtime ' + self.engine.runtime + '; {_UNTOLD}'",
    )
    for kind, runtimes in UNTOLD.items()
)
"""On the whole spec."""

_IN_IMAGE = "pkg:// is only for engine.runtime pagefleet; use file:///PATH, a path in the image"
MODEL_IN_IMAGE = Rule(
    "!self.model.uri.startsWith('pkg://') || !has(self.engine) || !has(self.engine.runtime) "
    "|| self.engine.runtime == 'pagefleet'",
    f"model.uri {_IN_IMAGE}",
    f"'model.uri ' + self.model.uri + ': {_IN_IMAGE}'",
)
"""On the whole spec."""


_COLON = (
    "must not have a colon with engine.runtime sglang, where one stands between a model's name and its adapter's; "
    "give a name without one"
)
NAME_WITHOUT_COLON = Rule(
    "!has(self.model.servedName) || !self.model.servedName.contains(':') || !has(self.engine) "
    "|| !has(self.engine.runtime) || self.engine.runtime != 'sglang'",
    f"model.servedName {_COLON}",
    f'"model.servedName " + self.model.servedName + " {_COLON}"',
)
"""On the whole spec. Source: `check_server_args` in sglang/srt/server_args.py (0.5.11)."""


def model_refusal(uri: str, served_name: str | None, runtime: Runtime) -> str | None:
    """Why that engine cannot load a model from there, or serve it by that name; None when it can."""
    if uri.startswith("pkg://") and runtime is not Runtime.PAGEFLEET:
        return f"model.uri {uri}: {_IN_IMAGE}"
    misread = runtime is Runtime.SGLANG and ":" in (served_name or "")
    return f"model.servedName {served_name} {_COLON}" if misread else None


def metric_refusal(kinds: Iterable[str], runtime: Runtime) -> str | None:
    """Which of these metrics of an autoscaler that engine never tells; None when it tells all."""
    for kind in kinds:
        if runtime in UNTOLD.get(kind, ()):
            return f"autoscaling.metrics: {kind} is not told by engine.runtime {runtime}; {_UNTOLD}"
    return None


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
        yield _dtype_words(dtype, runtime)
    if engine.get("device") == "cpu" and not traits.on_cpu:
        yield f"{_CPU} with engine.runtime {runtime}; use cuda or auto"
    if engine.get("device") == "paced" and runtime is not Runtime.PAGEFLEET:
        yield f"{_PACED} with engine.runtime {runtime}; {_PACED_INSTEAD}"
    stages = (engine.get("parallelism") or {}).get("pipeline") or 1
    if stages > 1 and not traits.pipelines:
        yield f"{_PIPELINE} {stages} is not available with engine.runtime {runtime}; {_ONE_POD}"
    if traits.image is not None and engine.get("image") is None:
        yield _image_words(runtime, traits)
    if (runtime is Runtime.CUSTOM) != (engine.get("custom") is not None):
        yield _CUSTOM_NEEDED if runtime is Runtime.CUSTOM else _CUSTOM_ONLY
    extra = () if runtime is Runtime.CUSTOM else engine.get("extraArgs") or ()
    if any(re.match(_OWNED, argument) for argument in extra):
        yield _OWNED_WORDS


def cel() -> tuple[Rule, ...]:
    """The same rules on the schema of `spec.engine`."""
    return (
        *(_knob_rule(knob) for knob in Knob if _without(knob)),
        _dtype_rule(),
        _cpu_rule(),
        _pipeline_rule(),
        Rule(
            f"!has(self.device) || self.device != 'paced' || {_RUNTIME} == 'pagefleet'",
            f"{_PACED} with another engine.runtime than pagefleet; {_PACED_INSTEAD}",
            f"'{_PACED} with engine.runtime ' + {_RUNTIME} + '; {_PACED_INSTEAD}'",
        ),
        _image_rule(),
        Rule(f"{_RUNTIME} != 'custom' || has(self.custom)", _CUSTOM_NEEDED),
        Rule(f"{_RUNTIME} == 'custom' || !has(self.custom)", _CUSTOM_ONLY),
        Rule(
            f"!has(self.extraArgs) || {_RUNTIME} == 'custom' || !self.extraArgs.exists(each, each.matches('{_OWNED}'))",
            _OWNED_WORDS,
        ),
    )


def _without(knob: Knob) -> list[Runtime]:
    return [runtime for runtime, traits in TRAITS.items() if knob not in traits.knobs]


def _value(engine: Mapping[str, Any], knob: Knob) -> Any:
    value: Any = engine
    for part in knob.split("."):
        value = (value or {}).get(part)
    return value


def _knob_words(knob: Knob, value: object, runtime: Runtime) -> str:
    shown = "" if knob in PARTS_WITHOUT_VALUE else f" {value}"
    return f"engine.{knob}{shown} is not available with engine.runtime {runtime}; {INSTEAD[knob]}"


def _knob_rule(knob: Knob) -> Rule:
    lacking = _without(knob)
    shown, values = ("", _RUNTIME) if knob in PARTS_WITHOUT_VALUE else (" %s", f"self.{knob}, {_RUNTIME}")
    nothing = f" || self.{knob} == '{_AS_LEFT_OUT[knob]}'" if knob in _AS_LEFT_OUT else ""
    return Rule(
        f"!{_has(knob)}{nothing} || !({_RUNTIME} in [{_quoted(lacking)}])",
        f"engine.{knob} is not available with engine.runtime {_or(lacking)}; {INSTEAD[knob]}",
        f'"engine.{knob}{shown} is not available with engine.runtime %s; {INSTEAD[knob]}".format([{values}])',
    )


def _has(path: str) -> str:
    parts = path.split(".")
    tests = [f"has(self.{'.'.join(parts[: depth + 1])})" for depth in range(len(parts))]
    return tests[0] if len(tests) == 1 else f"({' && '.join(tests)})"


def _dtype_words(dtype: str, runtime: Runtime) -> str:
    known = " or ".join(TRAITS[runtime].dtypes)
    return f"engine.dtype {dtype} is not available with engine.runtime {runtime}; use {known}"


def _dtype_rule() -> Rule:
    """Of engines that have the field; for others the field's own rule speaks."""
    limited = {runtime: traits for runtime, traits in TRAITS.items() if Knob.DTYPE in traits.knobs}
    allowed = " || ".join(
        f"({_RUNTIME} == '{runtime}' && self.dtype in [{_quoted(traits.dtypes)}])"
        for runtime, traits in limited.items()
    )
    others = f"!({_RUNTIME} in [{_quoted(limited)}])"
    known = ", ".join(f"'{runtime}': '{' or '.join(traits.dtypes)}'" for runtime, traits in limited.items())
    return Rule(
        f"!has(self.dtype) || {others} || {allowed}",
        "engine.dtype is not available with this engine.runtime; docs/runtimes.md has what each takes",
        f"'engine.dtype ' + self.dtype + ' is not available with engine.runtime ' + {_RUNTIME} + '; use ' "
        f"+ {{{known}}}[{_RUNTIME}]",
    )


def _cpu_rule() -> Rule:
    able = [runtime for runtime, traits in TRAITS.items() if traits.on_cpu]
    return Rule(
        f"!has(self.device) || self.device != 'cpu' || {_RUNTIME} in [{_quoted(able)}]",
        f"{_CPU} with this engine.runtime (it is with {_or(able)}); use cuda or auto",
        f"'{_CPU} with engine.runtime ' + {_RUNTIME} + '; use cuda or auto'",
    )


def _pipeline_rule() -> Rule:
    able = [runtime for runtime, traits in TRAITS.items() if traits.pipelines]
    return Rule(
        "!has(self.parallelism) || !has(self.parallelism.pipeline) || self.parallelism.pipeline == 1 "
        f"|| {_RUNTIME} in [{_quoted(able)}]",
        f"{_PIPELINE} above 1 is not available with this engine.runtime; {_ONE_POD}",
        f'"{_PIPELINE} %d is not available with engine.runtime %s; {_ONE_POD}"'
        f".format([self.parallelism.pipeline, {_RUNTIME}])",
    )


def _image_words(runtime: Runtime, traits: Traits) -> str:
    return f"{_IMAGE_NEEDED} with engine.runtime {runtime}, as {_NO_IMAGE} for it; for example {traits.image}"


def _image_rule() -> Rule:
    foreign = {runtime: traits for runtime, traits in TRAITS.items() if traits.image is not None}
    examples = "{" + ", ".join(f"'{runtime}': '{traits.image}'" for runtime, traits in foreign.items()) + "}"
    return Rule(
        f"has(self.image) || !({_RUNTIME} in [{_quoted(foreign)}])",
        f"{_IMAGE_NEEDED} with engine.runtime {_or(foreign)}, as {_NO_IMAGE} for them",
        f"'{_IMAGE_NEEDED} with engine.runtime ' + {_RUNTIME} + ', as {_NO_IMAGE} for it; for example ' "
        f"+ {examples}[{_RUNTIME}]",
    )


def _quoted(words: Any) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _or(words: Any) -> str:
    return " or ".join(words)
