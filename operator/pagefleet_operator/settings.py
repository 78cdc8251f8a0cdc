"""What the operator is started with: flags and their environment variables, read once."""

import argparse
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from pagefleet_operator import flag_values
from pagefleet_operator.flag_values import Address as Address
from pagefleet_operator.ownership import Owner

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ENVIRONMENT_PREFIX = "PAGEFLEET_"
DEFAULT_ENGINE_IMAGE = "pagefleet-engine:latest"
DEFAULT_FETCH_IMAGE = "pagefleet-control:latest"


_DEFAULT_LEASE = "pagefleet-operator"
DEFAULT_LISTEN = Address("", 8080)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Every interval of the operator, in seconds.

    A renewal is given up `lease_renew_deadline_s` after the latest one that worked, and no write takes longer
    than `write_timeout_s`: together they stay below `lease_duration_s`, after which another replica may act.
    """

    resync_s: float = 300.0
    backoff_first_s: float = 0.5
    backoff_cap_s: float = 60.0
    watch_server_timeout_s: int = 60
    watch_inactivity_s: float = 65.0
    watch_connect_s: float = 5.0
    watch_retry_cap_s: float = 5.0
    relist_settle_s: float = 3.0
    groups_look_s: float = 5.0
    write_timeout_s: float = 3.0
    read_timeout_s: float = 10.0
    lease_duration_s: int = 10
    lease_renew_s: float = 2.0
    lease_renew_deadline_s: float = 6.0
    scrape_busy_s: float = 2.0
    scrape_calm_s: float = 4.0
    scrape_idle_s: float = 10.0
    scrape_timeout_s: float = 1.5
    handover_s: float = 5.0
    rival_look_s: float = 5.0
    live_watch_s: float = 150.0
    live_loop_s: float = 30.0


class NodeCacheFlags(NamedTuple):
    """The folder on nodes, what all models in it may take together, and Secrets with which nodes pull the image."""

    path: str
    limit: str | None = None
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one operator process runs. An empty `namespaces` means the whole cluster."""

    engine_image: str = DEFAULT_ENGINE_IMAGE
    fetch_image: str = DEFAULT_FETCH_IMAGE
    read_model_secrets: bool = False
    """Whether the fit check may open gated models with the tokens that services name."""
    model_origins: frozenset[str] = frozenset()
    """What else than hub and public clouds it may ask for a model's config."""
    node_cache: NodeCacheFlags | None = None
    """Where nodes keep models; None: nowhere."""
    namespaces: tuple[str, ...] = ()
    shard: str | None = None
    listen: Address = DEFAULT_LISTEN
    custom_metrics: Address | None = None
    """Where to serve custom.metrics.k8s.io; None: nowhere."""
    keda_scaler: Address | None = None
    """Where to serve KEDA's external scaler; None: nowhere."""
    keda_tls_folder: Path | None = None
    """A mounted TLS Secret; None: plain text."""
    lease_namespace: str = "default"
    lease_name: str = _DEFAULT_LEASE
    identity: str = "pagefleet-operator"
    log_format: Literal["json", "text"] = "json"
    timings: Timings = field(default_factory=Timings)

    @property
    def owner(self) -> Owner:
        """This operator, as Deployments name it."""
        return Owner(self.lease_namespace, self.lease_name, self.shard)


def own_version() -> str:
    """The installed version, or `unknown` where only the source tree is."""
    try:
        return version("pagefleet")
    except PackageNotFoundError:
        return "unknown"


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from flags, else from `PAGEFLEET_*` variables, else the defaults.

    Exits as argparse does: status 2 and a line that names the flag.
    """
    parser = _parser(environment)
    options = parser.parse_args(argv)
    host, port = options.listen
    namespaces = tuple(
        dict.fromkeys(options.namespace or flag_values.words(environment.get("PAGEFLEET_NAMESPACE", "")))
    )
    if options.node_cache is not None and (namespaces or options.shard is not None):
        parser.error("--node-cache is for all services of a cluster: leave out --namespace and --shard, or it")
    pull_secrets = tuple(options.node_cache_pull_secret)
    return Settings(
        engine_image=options.engine_image,
        fetch_image=options.fetch_image,
        read_model_secrets=options.read_model_secrets,
        model_origins=options.model_origins,
        node_cache=options.node_cache and NodeCacheFlags(options.node_cache, options.node_cache_limit, pull_secrets),
        namespaces=namespaces,
        listen=Address(host, port),
        custom_metrics=options.custom_metrics,
        keda_scaler=options.keda_scaler,
        keda_tls_folder=options.keda_tls_folder,
        lease_namespace=options.lease_namespace,
        lease_name=options.lease_name or "-".join(filter(None, (_DEFAULT_LEASE, options.shard))),
        shard=options.shard,
        identity=options.identity,
        log_format=options.log_format,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    def default(name: str, otherwise: str) -> str:
        return environment.get(_ENVIRONMENT_PREFIX + name) or otherwise

    result = argparse.ArgumentParser(
        prog="pagefleet_operator",
        description="Runs InferenceServices: renders, scales, drains and reports. Every flag has a variable "
        f"{_ENVIRONMENT_PREFIX}<FLAG>, for example {_ENVIRONMENT_PREFIX}ENGINE_IMAGE.",
        allow_abbrev=False,
    )
    result.add_argument("--version", action="version", version=f"pagefleet {own_version()}")
    _add_image_flags(result, default)
    _add_node_cache_flags(result, default)
    _add_scope_flags(result, default)
    result.add_argument(
        "--listen",
        metavar="[HOST]:PORT",
        type=flag_values.address,
        default=default("LISTEN", ":8080"),
        help="address of /healthz, /readyz, /metrics and /decisions (default :8080)",
    )
    _add_offer_flags(result, default)
    _add_lease_flags(result, default, environment)
    result.add_argument(
        "--log-format",
        choices=("json", "text"),
        default=default("LOG_FORMAT", "json"),
        help="one JSON object a line, or text for a terminal (default %(default)s)",
    )
    return result


def _add_image_flags(result: argparse.ArgumentParser, default: Callable[[str, str], str]) -> None:
    result.add_argument(
        "--engine-image",
        metavar="IMAGE",
        default=default("ENGINE_IMAGE", DEFAULT_ENGINE_IMAGE),
        help="image of services that name none (default %(default)s)",
    )
    result.add_argument(
        "--fetch-image",
        metavar="IMAGE",
        default=default("FETCH_IMAGE", DEFAULT_FETCH_IMAGE),
        help="image that downloads models: this program's own (default %(default)s)",
    )


def _add_node_cache_flags(result: argparse.ArgumentParser, default: Callable[[str, str], str]) -> None:
    result.add_argument(
        "--node-cache",
        metavar="FOLDER",
        type=flag_values.folder,
        default=default("NODE_CACHE", "") or None,
        help="keep models of services with model.cache.mode: Node here on nodes (default: nowhere)",
    )
    result.add_argument(
        "--node-cache-limit",
        metavar="SIZE",
        type=flag_values.size,
        default=default("NODE_CACHE_LIMIT", "") or None,
        help="what they may take on one node, as 500Gi: models that no service wants go (default: no limit)",
    )
    result.add_argument(
        "--node-cache-pull-secret",
        metavar="NAME",
        action="append",
        default=[],
        help="a Secret of the operator's namespace with which nodes pull --fetch-image; repeatable",
    )


def _add_scope_flags(result: argparse.ArgumentParser, default: Callable[[str, str], str]) -> None:
    result.add_argument(
        "--read-model-secrets",
        action=argparse.BooleanOptionalAction,
        default=default("READ_MODEL_SECRETS", "false") == "true",
        help="read the Secret that model.secretRef names, to tell whether its model fits (default: do not)",
    )
    result.add_argument(
        "--model-origins",
        metavar="URL,…",
        type=flag_values.origins,
        default=default("MODEL_ORIGINS", ""),
        help="web servers and object stores that may be asked for config.json and index of users' models, to tell "
        "whether they fit (default: the hub and the public clouds alone)",
    )
    result.add_argument(
        "--namespace",
        metavar="NAME",
        action="append",
        help="namespace to serve; repeatable; without it the whole cluster",
    )
    result.add_argument(
        "--shard",
        metavar="NAME",
        type=flag_values.shard,
        default=default("SHARD", "") or None,
        help="serve only InferenceServices with the label pagefleet.io/shard=NAME; without it only those without that "
        "label. Each shard has its own Lease",
    )


def _add_offer_flags(result: argparse.ArgumentParser, default: Callable[[str, str], str]) -> None:
    result.add_argument(
        "--custom-metrics",
        metavar="[HOST]:PORT",
        type=flag_values.address,
        default=default("CUSTOM_METRICS", "") or None,
        help="serve custom.metrics.k8s.io here, for HorizontalPodAutoscalers (default: do not)",
    )
    result.add_argument(
        "--keda-scaler",
        metavar="[HOST]:PORT",
        type=flag_values.address,
        default=default("KEDA_SCALER", "") or None,
        help="serve KEDA's external scaler (gRPC) here (default: do not)",
    )
    result.add_argument(
        "--keda-tls-folder",
        metavar="FOLDER",
        type=Path,
        default=default("KEDA_TLS_FOLDER", "") or None,
        help="tls.crt and tls.key for it, and ca.crt where only clients that this signed may ask (default: plain text)",
    )


def _add_lease_flags(
    result: argparse.ArgumentParser, default: Callable[[str, str], str], environment: Mapping[str, str]
) -> None:
    result.add_argument(
        "--lease-namespace",
        metavar="NAME",
        default=default("LEASE_NAMESPACE", _own_namespace()),
        help="namespace of the leader's Lease (default: the operator's own, else default)",
    )
    result.add_argument(
        "--lease-name",
        metavar="NAME",
        default=default("LEASE_NAME", ""),
        help=f"name of the leader's Lease (default {_DEFAULT_LEASE}, with -NAME of the shard)",
    )
    result.add_argument(
        "--identity",
        metavar="NAME",
        default=default("IDENTITY", environment.get("POD_NAME") or _made_up_identity()),
        help="this replica in the Lease, in Events and in logs; unique (default: $POD_NAME, else made up)",
    )


def _made_up_identity() -> str:
    """A name that no other process has. A pod's name needs no such addition: its processes never overlap."""
    return f"{socket.gethostname()}-{os.urandom(4).hex()}"


def _own_namespace() -> str:
    """The namespace of the pod that this process runs in, else `default`."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
