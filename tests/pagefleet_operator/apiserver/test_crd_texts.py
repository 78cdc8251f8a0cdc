"""The API server and the parser refuse the same texts: two implementations of one rule, side by side."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api.test_values import NO_QUANTITY, NO_URI, WRONG
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver

_FITTING = {
    "engine.kvCache.size": "512Mi",
    "autoscaling.metrics[0].target.averageValue": "0.5",
    "autoscaling.missingMetrics.minCoverage": "5e-1",
    "resources.limits[memory]": "+2.0Gi",
    "model.revision": "refs/pr_1",
    "model.secretRef.name": "my.secret-1",
    "model.adapters[0].name": "Sql-v2.1_a",
    "engine.quantization": "fp8_e4-m3",
    "engine.custom.healthPath": "/a/b",
    "engine.custom.metrics.running": "a:b_1",
    "resources.gpu.resourceName": "nvidia.com/mig-3g.40gb",
    "autoscaling.lookahead": "1m30s",
    "autoscaling.metrics[0].target.p95": "1s500ms",
    "autoscaling.schedules[0].name": "night-2",
    "autoscaling.schedules[0].timezone": "Etc/GMT+1",
    "autoscaling.schedules[0].start": "19:30",
    "autoscaling.schedules[0].end": "24:00",
    "autoscaling.schedules[0].days[0]": "Mon-Fri",
    "rollout.maxSurge": "25%",
    "model.uri": "oci://h:5/i@a#b/c",
    "model.adapters[0].uri": "pvc://claim/b/c",
    "model.draft.uri": "https://[::1]:8/b?c",
}
"""A text that each field takes, most of what its form allows in it."""
_NARROWER = ("autoscaling.schedules[0].timezone", "autoscaling.metrics[0].target.p95")
"""Of these the parser also refuses what no form says: unknown places, and times that make no sense."""
_SPECS = {field: (spec, wrong) for spec, field, wrong, _ in reversed((*WRONG, *NO_QUANTITY, *NO_URI))}
"""For each field a spec that is refused for one text alone, and the text."""
_BITS = (
    "",
    "..",
    "/..",
    "#..",
    "Auto",
    "None",
    *"\n\t\r \0\x7f\x1b\"'`\\%+,-./:=?@#[]{}$^_01aZ\u00e9\u0663\u2028\U0001f600",
)


@st.composite
def _texts(draw: st.DrawFn, fitting: str) -> str:
    """What fits, with a bit in the place of some of it once or twice."""
    text = fitting
    for _ in range(draw(st.integers(0, 2))):
        begin = draw(st.integers(0, len(text)))
        end = draw(st.integers(begin, min(begin + 2, len(text))))
        text = text[:begin] + draw(st.sampled_from(_BITS)) + text[end:]
    return text


def test_there_is_a_text_for_each_field() -> None:
    assert {*_SPECS} == {*_FITTING}


@pytest.mark.parametrize("field", _FITTING)
def test_what_fits_is_taken_by_both(api: Api, crowd: str, field: str) -> None:
    body = _body(crowd, field, _FITTING[field])
    assert not _refused_by_the_parser(body)
    assert not _refused_by_the_api_server(api, body)


@pytest.mark.parametrize("field", _FITTING)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_the_parser_and_the_api_server_refuse_the_same_texts(
    api: Api, crowd: str, field: str, data: st.DataObject
) -> None:
    body = _body(crowd, field, data.draw(_texts(_FITTING[field])))
    applied = not _refused_by_the_api_server(api, body)
    usable = not _refused_by_the_parser(body)
    assert applied or not usable, "the parser takes what nobody can apply"
    assert usable or not applied or field in _NARROWER, "what can be applied is of no use"


def _body(namespace: str, field: str, text: str) -> Json:
    spec, wrong = _SPECS[field]
    return service(namespace, **{"model": {"uri": "file:///m"}, **_with(spec, wrong, text)})


def _with(given: Any, wrong: str, text: str) -> Any:
    """`given` with `text` wherever it has `wrong`."""
    if isinstance(given, dict):
        return {name: _with(value, wrong, text) for name, value in given.items()}
    if isinstance(given, list):
        return [_with(value, wrong, text) for value in given]
    return text if given == wrong else given


def _refused_by_the_api_server(api: Api, body: Json) -> bool:
    """A dry run: nothing is kept of it."""
    try:
        api.call("POST", api.path("inferenceservices", body["metadata"]["namespace"]) + "?dryRun=All", body)
    except ApiRefusal as refusal:
        assert refusal.status == 422, refusal
        return True
    return False


def _refused_by_the_parser(body: Json) -> bool:
    try:
        InferenceService.parse({**body, "metadata": {**body["metadata"], "uid": "u"}})
    except InvalidService:
        return True
    return False


@pytest.fixture(scope="module")
def crowd(box: Any) -> str:
    """One namespace for all of them, as nothing is kept."""
    Api(box.kubeconfig).create("namespaces", {"metadata": {"name": "texts"}})
    return "texts"
