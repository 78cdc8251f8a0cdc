"""How a pod leaves when the kubelet ends it: one answer for every runtime, all of it from `drain.timeoutSeconds`."""

from typing import Any, NamedTuple

from pagefleet_api.service import Drain

LAG_S = 5
"""Endpoints and kept connections go on naming a pod for about so long after it began to end."""

MARGIN_S = 15
"""What the kubelet waits beyond the engine's own limit, so that the engine ends its streams and not SIGKILL."""


class Leaving(NamedTuple):
    """The kubelet's part of a drain.

    grace_s: `terminationGracePeriodSeconds`; it counts from before the preStop hook.
    lifecycle: the container's `lifecycle`; None where the engine itself serves on through the lag.
    """

    grace_s: int
    lifecycle: dict[str, Any] | None


def leaving(drain: Drain, *, serves_through_lag: bool) -> Leaving:
    """For an engine that takes `drain.timeoutSeconds` from its SIGTERM on to finish what runs.

    serves_through_lag: after SIGTERM it takes requests for LAG_S more, as ours does. Any other gets its SIGTERM
    so much later, by the kubelet's own sleep, which needs no shell in the image (Kubernetes 1.30 and later).
    """
    if serves_through_lag:
        return Leaving(drain.timeout_seconds + MARGIN_S, None)
    sleep = {"preStop": {"sleep": {"seconds": LAG_S}}}
    return Leaving(LAG_S + drain.timeout_seconds + MARGIN_S, sleep)
