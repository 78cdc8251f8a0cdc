"""A ScaledObject's metadata."""

import pytest

from pagefleet_api.custom_metrics import CustomMetric
from pagefleet_operator.keda.triggers import BadTrigger, Trigger, parse

GOOD = {"inferenceService": "s", "metric": "pagefleet_in_flight_requests", "target": "4.5"}


def test_a_trigger_names_service_metric_and_target() -> None:
    assert parse("n", {**GOOD, "scalerAddress": "x:1"}) == Trigger("n", "s", CustomMetric.IN_FLIGHT, 4.5)
    assert parse("n", {**GOOD, "activation": "2"}).activation == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"metric": ""}, r"metadata\.metric is missing; give one of pagefleet_waiting_requests"),
        ({"metric": "speed"}, r"metadata\.metric: 'speed' is no metric"),
        ({"target": "0"}, r"metadata\.target: '0' must be above 0"),
        ({"target": "many"}, r"metadata\.target: 'many' is no number"),
        ({"target": "inf"}, r"metadata\.target: 'inf' is no number"),
        ({"inferenceService": ""}, r"metadata\.inferenceService is missing"),
        ({"activation": ""}, r"metadata\.activation is missing"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_way_out(changed: dict[str, str], words: str) -> None:
    with pytest.raises(BadTrigger, match=words):
        parse("n", {**GOOD, **changed})
