"""Two replicas: one acts. Real intervals, as they are the promise."""

import signal
import time

import pytest

from pagefleet_operator.settings import Timings
from tests.pagefleet_operator.apiserver.api import Api, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service

pytestmark = pytest.mark.apiserver

_REAL = {
    name: getattr(Timings(), name)
    for name in ("lease_renew_s", "lease_renew_deadline_s", "lease_duration_s", "write_timeout_s")
}


def _pair(start: Start) -> tuple[OperatorProcess, OperatorProcess]:
    leader = start(**_REAL).ready()
    standby = start(**_REAL)
    eventually(lambda: standby.get("/readyz")[0] == 200, "the standby is warm", 30)
    return leader, standby


def _handled(api: Api, namespace: str, name: str) -> bool:
    return api.get("deployments", namespace, name) is not None


def test_a_standby_writes_nothing_and_takes_over_within_fifteen_seconds_of_a_kill(
    api: Api, namespace: str, start: Start
) -> None:
    leader, standby = _pair(start)
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


def test_a_clean_exit_takes_less_than_five_seconds_and_hands_over_at_once(
    api: Api, namespace: str, start: Start
) -> None:
    leader, standby = _pair(start)
    api.create("inferenceservices", service(namespace, "one"))
    eventually(lambda: _handled(api, namespace, "one"), "the leader handles it")
    assert leader.stop() < 5
    assert leader.process.returncode == 0
    eventually(lambda: standby.metric("pagefleet_leader") == 1, "the standby leads", 4)


def test_a_leader_that_slept_through_its_lease_writes_nothing_when_it_wakes(
    api: Api, namespace: str, start: Start
) -> None:
    leader, standby = _pair(start)
    before = leader.writes()
    leader.process.send_signal(signal.SIGSTOP)
    eventually(lambda: standby.metric("pagefleet_leader") == 1, "the standby leads", 15)
    api.create("inferenceservices", service(namespace, "two"))
    leader.process.send_signal(signal.SIGCONT)
    eventually(lambda: _handled(api, namespace, "two"), "the new leader handles it")
    eventually(lambda: leader.get("/metrics")[0] == 200, "the old leader is awake")
    never(lambda: leader.writes() > before or leader.metric("pagefleet_leader") == 1, "two replicas acted", 3)
