"""A number that others set through /scale is followed, with drains, and the status says who set it."""

import pytest

from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver


def _status(api: Api, namespace: str) -> Json:
    found: Json = (api.get("inferenceservices", namespace, "s") or {}).get("status", {})
    return found


def _active(api: Api, namespace: str) -> tuple[str, str]:
    conditions = _status(api, namespace).get("conditions", [])
    return next(((c["reason"], c["message"]) for c in conditions if c["type"] == "ScalingActive"), ("", ""))


def _scale(api: Api, namespace: str, replicas: int) -> None:
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": replicas}}, "scale")


def test_the_number_of_others_is_followed_with_drains_and_the_status_says_whose_it_is(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", service(namespace, autoscaling={"mode": "External"}), strict=True)
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves")
        eventually(lambda: _active(api, namespace)[0] == "AwaitsScaler", "nobody has scaled it")
        _scale(api, namespace, 2)
        eventually(lambda: len(fleet.serving()) == 2, "two pods serve")
        words = "somebody set spec.replicas to 2 through /scale"
        eventually(lambda: _active(api, namespace) == ("ExternallyScaled", words), "it is said who did")
        fleet.set_load(running=8, waiting=4)
        never(lambda: len(fleet.pods()) != 2, "the load moved a number that others set", 2)
        _scale(api, namespace, 1)
        eventually(lambda: len(fleet.serving()) == 1, "one of them leaves")
        never(lambda: len(fleet.pods()) != 2, "a busy pod was taken", 2)
        fleet.set_load()
        eventually(lambda: len(fleet.pods()) == 1, "it goes when its answers are out", 20)
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 0
        history = _status(api, namespace)["autoscaling"]["history"]
        assert [(each["before"], each["desired"]) for each in history] == [(2, 1), (1, 2)]
        assert operator.writes() < 60
