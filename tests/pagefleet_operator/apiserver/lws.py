"""LWS' own parts, from its Go module, which nothing of this repository holds."""

from functools import cache
from pathlib import Path

import yaml

from e2e.cluster.binaries import go_module
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json, eventually

MODULE = "sigs.k8s.io/lws@v0.8.0"
_NAME = "leaderworkersets.leaderworkerset.x-k8s.io"
_CRD = "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"

_CRD_LIMIT_S = 60.0
"""The API server serves a new kind after five seconds, and takes as long to clear an old one away."""


@cache
def folder() -> Path:
    """The module's files."""
    return go_module(MODULE)


def install(api: Api) -> None:
    """Its CRD is there and served."""
    if api.get("customresourcedefinitions", None, _NAME) is None:
        definition: Json = yaml.safe_load(Path(folder(), _CRD).read_text(encoding="utf-8"))
        api.create("customresourcedefinitions", definition)
    eventually(lambda: _served(api), "LeaderWorkerSets are served", _CRD_LIMIT_S)


def remove(api: Api) -> None:
    """Its CRD is not there."""
    api.delete("customresourcedefinitions", None, _NAME)
    eventually(lambda: not _served(api), "LeaderWorkerSets are served no more", _CRD_LIMIT_S)


def sets(api: Api, namespace: str) -> list[Json]:
    """The LeaderWorkerSets of a namespace; none while the kind is not there."""
    try:
        return api.list("leaderworkersets", namespace)
    except (ApiRefusal, ValueError):  # the server answers in plain text where it does not have the group
        return []


def _served(api: Api) -> bool:
    try:
        return isinstance(api.list("leaderworkersets"), list)
    except (ApiRefusal, ValueError):
        return False
