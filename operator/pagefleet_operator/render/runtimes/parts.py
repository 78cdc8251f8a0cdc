"""What engines have in common: flags, probes, and how they leave."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pagefleet_api import labels, quantity
from pagefleet_api.runtimes import TRAITS, Runtime
from pagefleet_api.schema import Model
from pagefleet_api.service import Engine, InferenceService, Spec
from pagefleet_operator.facts.expansion import Variable, literal
from pagefleet_operator.render.drain import LAG_S, Leaving, leaving

Part = dict[str, Any]
NOTHING: Mapping[str, str] = MappingProxyType({})

_START_LIMIT_S = 1800
LEADER_ADDRESS, WORKER_INDEX = "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"
"""Environment variables of every pod of a group. Source: https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What of a pod depends on its engine; every part as in a pod template.

    command: in place of the image's entry point. worker_args: of a group's other pods; None where they are the same.
    probes: the three of them, by their field.
    pod_labels, annotations: on the pod, beside those that every pod has.
    """

    args: Sequence[str]
    ports: Sequence[Part]
    probes: Mapping[str, Part]
    leaving: Leaving
    command: Sequence[str] = ()
    worker_args: Sequence[str] | None = None
    env: Sequence[Part] = ()
    env_from: Sequence[Part] = ()
    volumes: Sequence[Part] = ()
    mounts: Sequence[Part] = ()
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def port(name: str, number: int) -> Part:
    """One port of a container."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def probe(path: str, port_name: str, *, period_s: int, timeout_s: int, failures: int) -> Part:
    """An HTTP probe."""
    return {
        "httpGet": {"path": path, "port": port_name, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def foreign_probes(path: str) -> Mapping[str, Part]:
    """Of an engine with one health path: it starts for up to half an hour, and is dead after a minute of silence."""
    return {
        "startupProbe": probe(path, labels.PORT_NAME, period_s=2, timeout_s=5, failures=_START_LIMIT_S // 2),
        "readinessProbe": probe(path, labels.PORT_NAME, period_s=5, timeout_s=5, failures=3),
        "livenessProbe": probe(path, labels.PORT_NAME, period_s=10, timeout_s=10, failures=6),
    }


def own_start_probe(path: str) -> Part:
    """Of our own engine, looked at every second: each of them is one of a cold start."""
    return probe(path, labels.ADMIN_PORT_NAME, period_s=1, timeout_s=5, failures=_START_LIMIT_S)


def variables(**given: str) -> list[Part]:
    """Environment variables, with these values whatever is in them."""
    return [{"name": name, "value": literal(value)} for name, value in given.items()]


def foreign_variables(**more: str) -> list[Part]:
    """For an image that was made for root: caches go where a user without a home may write, and the model, which is
    in the pod already, is asked of nobody outside.
    """
    return variables(HOME="/tmp", USER="pagefleet", HF_HUB_OFFLINE="1", **more)


def foreign_parts(
    service: InferenceService,
    runtime: Runtime,
    args: Sequence[str],
    *,
    command: Sequence[str] = (),
    environment: Mapping[str, str] = NOTHING,
    leaves: Leaving | None = None,
) -> EngineParts:
    """What engines of others have in common: one port, one health path, the user's further arguments last.

    environment: beside what every such image needs. leaves: None for one that finishes its answers after SIGTERM.
    """
    return EngineParts(
        command=command,
        args=[*args, *service.spec.engine.extra_args],
        ports=[port(labels.PORT_NAME, labels.ENGINE_PORT)],
        env=foreign_variables(**environment),
        probes=foreign_probes(TRAITS[runtime].health_path),
        leaving=leaves or leaving(service.spec.drain, serves_through_lag=False),
        pod_labels=foreign_labels(runtime),
    )


def flags(*pairs: tuple[str, object]) -> list[str]:
    """Arguments; those without a value are left out."""
    return [word for name, value in pairs if value is not None for word in (name, _argument(value))]


def _argument(value: object) -> str:
    """What the engine gets is the value, whatever is in it, or what a variable of its container has."""
    return str(value) if isinstance(value, Variable) else literal(str(value))


def told(**options: Any) -> dict[str, Any]:
    """Options of an engine that takes them as an object; those without a value are left out."""
    return {name: value for name, value in options.items() if value is not None}


def given(part: Model, field_name: str) -> Any:
    """The user's value of a field; None where it was left out, as a foreign engine has defaults of its own."""
    return getattr(part, field_name) if field_name in part.model_fields_set else None


def chosen(value: str | None) -> str | None:
    """A value that is not left to the engine."""
    return None if value == "auto" else value


def tensor(spec: Spec) -> int | None:
    """GPUs that share each layer; None for one."""
    return spec.engine.parallelism.tensor if spec.engine.parallelism.tensor > 1 else None


def pipeline(spec: Spec) -> int | None:
    """Pods that share the layers; None for one."""
    return spec.engine.parallelism.pipeline if spec.in_groups else None


def in_group(spec: Spec, variable: str, after: str = "") -> Variable | None:
    """What LWS tells each pod of a group in its environment, for an argument; None without groups."""
    return Variable(variable, after) if spec.in_groups else None


def waiting_for_leader(port_number: int, *, limit_s: int) -> str:
    """A bash script that ends when three times in a row the leader of the group does not listen, or cannot be found.

    Its name leads to the address of its pod for as long as LWS keeps that, and to nobody there, who does not refuse.
    """
    probe_leader = f"timeout 5 bash -c 'exec 3<>/dev/tcp/$LWS_LEADER_ADDRESS/{port_number}' 2>/dev/null"
    return (
        f"end=$((SECONDS + {limit_s})) missed=0; while ((SECONDS < end && missed < 3)); "
        f"do if {probe_leader}; then missed=0; else ((++missed)); fi; sleep 1; done"
    )


def share(engine: Engine) -> str | None:
    """kvCache.memoryUtilization as a decimal."""
    text = engine.kv_cache.memory_utilization
    return None if text is None else f"{float(quantity.parse(text)):g}"


def foreign_labels(runtime: Runtime) -> Mapping[str, str]:
    """What tells the operator how to ask a pod for its load."""
    return {labels.RUNTIME: runtime.value}


def leaving_when_idle(service: InferenceService, runtime: Runtime) -> Leaving:
    """For an engine that cuts answers off some time after its SIGTERM: it gets that when its own metrics say that
    nothing runs and nothing waits, or at the end of drain.timeoutSeconds. Needs bash, sed and awk in the image.
    """
    drain = service.spec.drain
    traits = TRAITS[runtime]
    names = [series.name for choices in (traits.names.running, traits.names.waiting) for series in choices[0]]
    used = [series.name for choices in traits.names.ended for series in choices] if traits.names.born_by_use else []
    script = until_idle(
        labels.ENGINE_PORT, traits.metrics_path, names, used, lag_s=LAG_S, limit_s=drain.timeout_seconds, every_s=1
    )
    plain = leaving(drain, serves_through_lag=False)
    return Leaving(plain.grace_s, {"preStop": {"exec": {"command": ["bash", "-c", script]}}})


def until_idle(
    port_number: int,
    path: str,
    names: Sequence[str],
    used: Sequence[str] = (),
    *,
    lag_s: float,
    limit_s: int,
    every_s: float,
) -> str:
    """A bash script that ends when the sum of these series is 0. A name that is not there is no 0; an engine that
    does not answer any more is waited for no longer.

    used: series that are there once a request has ended; where they are given, none of all means that there was none.
    """
    absent = '(use ? "unknown" : 0)' if used else '"unknown"'
    counts = f"/^({'|'.join(names)})[ {{]/ {{ seen = 1; sum += $NF }} "
    counts += f"/^({'|'.join(used)})[ {{]/ {{ use = 1 }} " if used else ""
    counts += f"END {{ print seen ? sum + 0 : {absent} }}"
    request = f"GET {path} HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n"
    return (
        f"sleep {lag_s}; end=$((SECONDS + {limit_s})); "
        "while ((SECONDS < end)); do "
        f"exec 3<>/dev/tcp/127.0.0.1/{port_number} || exit 0; "
        f"printf {shlex.quote(request)} >&3; "
        f"held=$(awk {shlex.quote(counts)} <&3); exec 3>&-; "
        '[ "$held" = 0 ] && exit 0; '
        f"sleep {every_s}; done"
    )
