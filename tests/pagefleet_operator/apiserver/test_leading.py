"""Two replicas: one acts."""

import signal
import time
from pathlib import Path

import pytest

from e2e.cluster.box import Box
from pagefleet_operator.settings import Timings
from tests.pagefleet_operator.apiserver.accounts import account, allow
from tests.pagefleet_operator.apiserver.api import Api, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service

pytestmark = pytest.mark.apiserver

_REAL: dict[str, float] = {
    name: getattr(Timings(), name)
    for name in ("lease_renew_s", "lease_renew_deadline_s", "lease_duration_s", "write_timeout_s")
}


def _pair(start: Start, **timings: float) -> tuple[OperatorProcess, OperatorProcess]:
    leader = start(**timings).ready()
    standby = start(**timings)
    eventually(lambda: standby.get("/readyz")[0] == 200, "the standby is warm", 30)
    return leader, standby


def _handled(api: Api, namespace: str, name: str) -> bool:
    return api.get("deployments", namespace, name) is not None


def test_a_standby_writes_nothing_and_takes_over_within_fifteen_seconds_of_a_kill(
    api: Api, namespace: str, start: Start
) -> None:
    leader, standby = _pair(start, **_REAL)  # the promise is about these
    api.create("inferenceservices", service(namespace, "one"))
    eventually(lambda: _handled(api, namespace, "one"), "the leader handles it")
    assert standby.metric("pagefleet_leader") == 0
    assert standby.writes() == 0
    leader.kill()
    began_s = time.monotonic()
    api.create("inferenceservices", service(namespace, "two"))
    eventually(lambda: _handled(api, namespace, "two"), "the standby handles it", 15)
    assert time.monotonic() - began_s < 15
    lease = api.get("leases", namespace, "pagefleet-operator")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == "operator-1"
    assert lease["spec"]["leaseTransitions"] == 1


def test_a_replica_that_can_watch_nothing_leaves_the_lead_to_one_that_can(
    api: Api, box: Box, namespace: str, start: Start, tmp_path: Path
) -> None:
    kubeconfig = account(api, box.kubeconfig, tmp_path, namespace)
    allow(api, namespace, namespace, "leases")
    blind = start(kubeconfig=kubeconfig)
    eventually(lambda: blind.events("namespace_refused"), "it knows that it may not watch", 30)
    sound = start().ready()
    api.create("inferenceservices", service(namespace, "one"))
    eventually(lambda: _handled(api, namespace, "one"), "the sound one handles it")
    assert blind.metric("pagefleet_leader") == 0
    assert blind.get("/readyz")[0] == 503
    assert blind.get("/healthz")[0] == 200
    trail = f"/decisions?namespace={namespace}&name=one"
    eventually(lambda: "operator-1" in blind.get(trail)[1], "it knows the leader")
    assert blind.get(trail)[0] == 503
    assert sound.get(trail)[0] == 200


def test_a_clean_exit_takes_less_than_five_seconds_and_hands_over_at_once(
    api: Api, namespace: str, start: Start
) -> None:
    leader, standby = _pair(start, lease_renew_deadline_s=30, lease_duration_s=60)
    api.create("inferenceservices", service(namespace, "one"))
    eventually(lambda: _handled(api, namespace, "one"), "the leader handles it")
    assert leader.stop() < 5
    assert leader.exit_status == 0
    eventually(lambda: standby.metric("pagefleet_leader") == 1, "the standby leads long before the lease is over", 15)


def test_a_leader_that_slept_through_its_lease_writes_nothing_when_it_wakes(
    api: Api, namespace: str, start: Start
) -> None:
    leader, standby = _pair(start)
    before = leader.writes()
    leader.send(signal.SIGSTOP)
    eventually(lambda: standby.metric("pagefleet_leader") == 1, "the standby leads", 15)
    api.create("inferenceservices", service(namespace, "two"))
    leader.send(signal.SIGCONT)
    eventually(lambda: _handled(api, namespace, "two"), "the new leader handles it")
    eventually(lambda: leader.get("/metrics")[0] == 200, "the old leader is awake")
    never(lambda: leader.writes() > before or leader.metric("pagefleet_leader") == 1, "two replicas acted", 2)
