"""The launch contract: the engine's command line, written and read in one place."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from pagefleet_api import labels, quantity, wording

DEVICES = ("auto", "cpu", "cuda", "paced")
DTYPES = ("auto", "float32", "bfloat16")
LOAD_FORMATS = ("auto", "dummy")
SCHEDULING_POLICIES = ("fcfs", "priority", "sjf", "fair")
_KEY_MARGIN = " \t\r\n\v\f"
"""Cut from both ends of a key: HTTP cuts it from a header, and files that become Secrets end in a line break."""


def _flag(help_text: str, default: Any, **options: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **options})


def _number(text: str, words: str, least: int, most: float = math.inf) -> int:
    """The whole number that `text` is; raises what argparse shows after the flag's name."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number {words}, but it is {text[:40]!r}") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{value} must be {words}")
    return value


def _positive(text: str) -> int:
    return _number(text, "at least 1", 1)


def _not_negative(text: str) -> int:
    return _number(text, "at least 0", 0)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and at most 1, but it is {text[:40]!r}")
    return value


def _port(text: str) -> int:
    return _number(text, "between 0 and 65535", 0, 65535)


def _size_bytes(text: str) -> int:
    try:
        return _positive(str(quantity.to_bytes(text)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Adapter(NamedTuple):
    """A LoRA adapter: the name that clients choose it by, which has no `=`, and its folder on this machine."""

    name: str
    path: str


def _adapter(text: str) -> Adapter:
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(
            f"must be a name and a folder, as sql=/models/sql-lora, but it is {text[:80]!r}"
        )
    return Adapter(name, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one engine process is started; `argv` and `parse` are each other's inverse."""

    model: str = field(metadata={"help": "pkg://PACKAGE (a model file in an installed package) or file://PATH"})
    served_model_name: str | None = _flag("the name clients use; default: the model's last path part", None)
    adapters: tuple[Adapter, ...] = field(
        default=(),
        metadata={
            "help": "a LoRA adapter as PEFT writes it: requests whose model is NAME are answered with the one in the "
            "folder PATH; repeatable"
        },
    )
    device: str = _flag(
        "where the model runs; auto takes a GPU when there is one; paced computes nothing, takes the time that a GPU "
        "would and gives tokens at random: for trying out everything around it",
        "auto",
        choices=DEVICES,
    )
    paced_costs: str | None = _flag(
        "JSON file of what a step of --device paced costs; default: an 8B model on an H200", None
    )
    dtype: str = _flag("number format of weights and cache; auto measures on a CPU", "auto", choices=DTYPES)
    load_format: str = _flag(
        "auto reads the model's weights, dummy makes random ones of its shape: for measuring speed alone",
        "auto",
        choices=LOAD_FORMATS,
    )
    host: str = _flag("address to listen on", "0.0.0.0")
    port: int = _flag("port of the OpenAI API; 0 takes a free one", 8000, type=_port)
    max_model_len: int | None = _flag(
        "longest prompt plus answer, in tokens; default: the model's", None, type=_positive
    )
    max_num_seqs: int = _flag("requests that run at the same time", 256, type=_positive)
    max_num_batched_tokens: int | None = _flag(
        "tokens computed in one step; default: 8192 on a GPU, 512 on a CPU", None, type=_positive
    )
    itl_goal_ms: int | None = _flag(
        "time between two tokens of an answer that prompts of others may stretch it to: more gives prompts more of "
        "each step; 0 sets none; default: 50 on a GPU, none on a CPU",
        None,
        type=_not_negative,
    )
    scheduling_policy: str = _flag(
        "who of those that wait is next: fcfs by arrival, priority by the request's own (the smallest first), sjf by "
        "the least work, fair by what its tenant has been served",
        "fcfs",
        choices=SCHEDULING_POLICIES,
    )
    num_kv_blocks: int | None = _flag(
        "KV cache size in blocks of 16 tokens; before --kv-cache-bytes", None, type=_positive
    )
    kv_cache_bytes: int | None = _flag("KV cache size in bytes, or as 512Mi, 4Gi", None, type=_size_bytes)
    gpu_memory_utilization: float = _flag("share of the GPU's memory that this engine may use in all", 0.9, type=_share)
    prefix_cache: bool = _flag("let requests share the KV blocks of equal prefixes", True)
    cuda_graphs: bool = _flag("replay decode steps as CUDA graphs", True)
    batch_invariant: bool = _flag(
        "fixed order of all sums on a GPU: a greedy answer is the same in any batch, at some cost in speed", False
    )
    tensor_parallel_size: int = _flag("GPUs that share one copy of the model", 1, type=_positive)
    max_queued_requests: int = _flag("requests that may wait; one more is refused with 429", 1024, type=_not_negative)
    drain_timeout_s: int = _flag("seconds that running answers get to finish after SIGTERM", 600, type=_not_negative)
    admin_port: int | None = _flag(
        "port for /load /drain /undrain /metrics /healthz /readyz alone; default: all on --port",
        None,
        type=_port,
    )
    chat_template: str | None = _flag("path of a Jinja chat template to use in place of the model's", None)
    vllm_metric_names: bool = _flag("also export metrics under vLLM's names", True)
    require_api_key: bool = _flag("do not start without any API key", False)
    api_key: tuple[str, ...] = field(
        default=(),
        repr=False,
        metadata={
            "help": "accept only requests with this bearer token; repeatable; also from the environment: "
            f"each variable that starts with {labels.API_KEY_ENV_PREFIX}"
        },
    )

    def argv(self) -> list[str]:
        """The flags that differ from the defaults, in a fixed order; keys travel in the environment."""
        words: list[str] = []
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name == "api_key" or value == spec.default:
                continue
            flag = option(spec.name)
            if spec.name == "adapters":
                words += [word for adapter in self.adapters for word in (flag, f"{adapter.name}={adapter.path}")]
            elif isinstance(value, bool):
                words.append(flag if value else f"--no-{flag[2:]}")
            else:
                words += [flag, str(value)]
        return words

    def environment(self) -> dict[str, str]:
        """The API keys as environment variables, which `parse` reads back."""
        return {f"{labels.API_KEY_ENV_PREFIX}{index:04}": key for index, key in enumerate(self.api_key)}

    @classmethod
    def parse(cls, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> "Launch":
        """Read a command line, and API keys from `environment`.

        Exits as argparse does: status 2 and one line that names the flag and what it takes; so it does for a
        key that no request could send, and for one port or one adapter's name given twice. The core process,
        which is given no keys, has no `environment`: that alone does not look for a required key.
        """
        arguments = parser()
        options = vars(arguments.parse_args(argv))
        given = [("--api-key", value) for value in options["api_key"]] + [
            (name, value)
            for name, value in sorted((environment or {}).items())
            if name.startswith(labels.API_KEY_ENV_PREFIX)
        ]
        try:
            options["api_key"] = tuple(_key(source, value) for source, value in given)
        except ValueError as error:
            arguments.error(str(error))
        if options["require_api_key"] and environment is not None and not given:
            arguments.error(
                "--require-api-key: there is no API key; give --api-key, or an environment variable that starts "
                f"with {labels.API_KEY_ENV_PREFIX} (in Kubernetes: an entry of the Secret)"
            )
        if options["port"] and options["port"] == options["admin_port"]:
            arguments.error(
                f"--port and --admin-port are both {options['port']}; give two ports, or leave --admin-port out to "
                "have everything on --port"
            )
        options["adapters"] = tuple(options["adapters"])
        name = wording.twice([adapter.name for adapter in options["adapters"]])
        if name is not None:
            arguments.error(f"--adapter: the name {name!r} is given twice; give each adapter a name of its own")
        return cls(**options)


def option(field_name: str) -> str:
    """The flag of a field of `Launch`."""
    return "--adapter" if field_name == "adapters" else f"--{field_name.replace('_', '-')}"


def _key(source: str, text: str) -> str:
    """A key without its margin; raises ValueError, which does not show the key, for one that cannot be sent."""
    key = text.strip(_KEY_MARGIN)
    if not key:
        raise ValueError(f"{source}: the API key is blank")
    if any(character < " " or character == "\x7f" for character in key):
        raise ValueError(
            f"{source}: the API key has a line break or another control character inside; give each key by itself"
        )
    return key


def parser() -> argparse.ArgumentParser:
    """The engine's argument parser, one option for each field of `Launch`."""
    result = argparse.ArgumentParser(
        prog="pagefleet_engine",
        description="Pagefleet's paged-KV inference engine with an OpenAI API.",
        allow_abbrev=False,
    )
    for spec in fields(Launch):
        options: dict[str, Any] = dict(spec.metadata)
        help_text = options.pop("help")
        flag = option(spec.name)
        if spec.name == "model":
            result.add_argument(flag, required=True, metavar="URI", help=help_text)
        elif spec.name == "api_key":
            result.add_argument(flag, action="append", default=[], metavar="KEY", help=help_text)
        elif spec.name == "adapters":
            result.add_argument(
                flag, dest=spec.name, action="append", default=[], metavar="NAME=PATH", type=_adapter, help=help_text
            )
        elif isinstance(spec.default, bool):
            result.add_argument(flag, action=argparse.BooleanOptionalAction, default=spec.default, help=help_text)
        else:
            shown = "" if spec.default is None else f" (default {spec.default})"
            result.add_argument(flag, default=spec.default, help=f"{help_text}{shown}", **options)
    return result
