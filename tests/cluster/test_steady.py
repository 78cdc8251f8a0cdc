"""How writes to a steady cluster are counted."""

from e2e.steady import changed, services, since, writes
from pagefleet_api.service import InferenceService

_COUNTED = """
# TYPE apiserver_request_total counter
apiserver_request_total{verb="APPLY",resource="inferenceservices",subresource="status"} 3
apiserver_request_total{verb="APPLY",resource="inferenceservices",subresource="status",code="409"} 1
apiserver_request_total{verb="WATCH",resource="deployments",subresource=""} 9
apiserver_request_total{verb="PUT",resource="leases",subresource=""} 99
apiserver_request_total{verb="POST",resource="serviceaccounts",subresource="token"} 5
apiserver_request_total{verb="PATCH",resource="pods",subresource=""} 2
"""


def test_writes_are_counted_without_reads_leases_and_tokens() -> None:
    assert writes(_COUNTED) == {"APPLY inferenceservices/status": 4.0, "PATCH pods": 2.0}


def test_only_what_grew_is_told() -> None:
    assert since({"PATCH pods": 2.0, "POST events": 1.0}, {"PATCH pods": 3.0, "POST events": 1.0, "PUT pods": 1.0}) == {
        "PATCH pods": 1.0,
        "PUT pods": 1.0,
    }


def test_a_status_that_changed_is_told_field_by_field() -> None:
    before = [{"metadata": {"name": "a"}, "status": {"ready": "1/1", "url": "u"}}, {"metadata": {"name": "b"}}]
    after = [
        {"metadata": {"name": "a"}, "status": {"ready": "0/1", "url": "u"}},
        {"metadata": {"name": "b"}, "status": {}},
    ]
    assert changed(before, after) == {"a": ["ready: 1/1 -> 0/1"]}


def test_the_services_of_the_count_are_valid() -> None:
    for manifest in services():
        meta = {**manifest["metadata"], "namespace": "n", "uid": "u"}  # type: ignore[dict-item]
        InferenceService.parse({**manifest, "metadata": meta})
