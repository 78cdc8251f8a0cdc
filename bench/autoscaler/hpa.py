"""The cluster's own controllers with the period of autoscalers that Kubernetes has by default."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.autoscaler.rows import HPA_SYNC_S
from e2e.cluster import control
from e2e.cluster.binaries import cached_binaries
from e2e.cluster.box import Box

_CONTROLLERS = "kube-controller-manager"
_PERIOD_FLAG = "--horizontal-pod-autoscaler-sync-period"


def with_period(words: Sequence[str], period_s: int) -> list[str]:
    """A command line of kube-controller-manager with another period. Pure."""
    kept = [word for word in words if not word.startswith(f"{_PERIOD_FLAG}=")]
    return [*kept, f"{_PERIOD_FLAG}={period_s}s"]


@contextmanager
def default_period(box: Box) -> Iterator[None]:
    """The box looks at autoscalers more often than clusters do; while this is open, as often as they do."""
    usual = control.commands(box.layout, box.folders, cached_binaries())[_CONTROLLERS]
    _restart(box, with_period(usual, HPA_SYNC_S))
    try:
        yield
    finally:
        _restart(box, usual)


def _restart(box: Box, words: Sequence[str]) -> None:
    box.processes.kill(_CONTROLLERS)
    box.processes.start(_CONTROLLERS, words)
