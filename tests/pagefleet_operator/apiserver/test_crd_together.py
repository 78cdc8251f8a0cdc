"""Fields that do not go together, as a real API server refuses them: in the parser's words, at the field's path."""

import pytest

from tests.pagefleet_api.together import NAMED, TOGETHER, Case
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver


def _refusal(api: Api, namespace: str, *cases: Case) -> str:
    body = service(namespace)
    body["spec"] = {"model": {"uri": "file:///m"}}
    for case in cases:
        body["spec"] |= case.spec
    with pytest.raises(ApiRefusal) as refusal:
        api.create("inferenceservices", body, strict=True)
    assert refusal.value.status == 422
    return str(refusal.value)


@pytest.mark.parametrize("case", [*TOGETHER, *NAMED], ids=lambda case: f"{case.field}: {case.words[:40]}")
def test_what_does_not_go_together_is_told_with_its_values_and_the_way_out(
    api: Api, namespace: str, case: Case
) -> None:
    path = f"{case.place}.{case.field}".removeprefix(".")
    assert f"{path}: Forbidden: {case.words}" in _refusal(api, namespace, case)


def test_all_that_does_not_go_together_is_told_at_once(api: Api, namespace: str) -> None:
    cases = [case for case in TOGETHER if case.spec.keys() in ({"autoscaling"}, {"rollout"}, {"resources"})]
    first = {tuple(case.spec): case for case in cases}.values()
    said = _refusal(api, namespace, *first)
    assert len(first) > 2
    assert all(case.words in said for case in first)
