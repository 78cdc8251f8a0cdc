"""Questions to the custom metrics API, and its documents."""

import pytest

from pagefleet_api import labels
from pagefleet_api.custom_metrics import CustomMetric
from pagefleet_operator.custom_metrics import wire
from pagefleet_operator.custom_metrics.wire import NotServed, Question
from pagefleet_operator.published import Reading
from tests.pagefleet_operator.autoscaling.build import START

AT = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n"
WAITING = CustomMetric.WAITING


def test_the_selector_of_a_scale_is_understood() -> None:
    query = {"labelSelector": labels.selector_text("s")}
    question = wire.parse(f"{AT}/pods/*/{WAITING}", query)
    assert question == Question("n", "pods", "*", WAITING, labels.selector("s"))
    assert question.of_all
    assert wire.selects(question.selector, labels.common("s"))
    assert not wire.selects(question.selector, labels.common("t"))
    assert wire.requirements("a==b, c=d") == {"a": "b", "c": "d"}


@pytest.mark.parametrize(
    ("path", "query", "status", "words"),
    [
        ("/metrics", {}, 404, "/metrics is not served; ask for"),
        (f"{AT}/pods/x", {}, 404, "is not served"),
        (f"{AT}/nodes/x/{WAITING}", {}, 404, "no metrics of nodes; there are those of pods and inferenceservices"),
        (f"{AT}/pods/x/{WAITING}", {"labelSelector": "a!=b"}, 400, "labelSelector: 'a!=b' is no equality"),
        (f"{AT}/pods/x/{WAITING}", {"labelSelector": "a"}, 400, "labelSelector: 'a' is no equality"),
        (f"{AT}/pods/x/{WAITING}", {"metricLabelSelector": "a=b"}, 400, "metricLabelSelector: these metrics have no"),
    ],
)
def test_what_is_not_served_says_what_is(path: str, query: dict[str, str], status: int, words: str) -> None:
    with pytest.raises(NotServed, match=words.replace("!", ".")) as refusal:
        wire.parse(path, query)
    assert refusal.value.status == status


def test_values_are_thousandths_with_the_time_of_their_sample() -> None:
    question = Question("n", wire.SERVICES, "s", CustomMetric.KV_USAGE, {})
    document = wire.values(
        question, [("s", Reading({CustomMetric.KV_USAGE: 1.2345}, START)), ("t", Reading({}, START))]
    )
    (item,) = document["items"]
    assert (item["value"], item["timestamp"]) == ("1234m", "2026-01-01T00:00:00Z")
    assert item["describedObject"] == {
        "kind": "InferenceService",
        "namespace": "n",
        "name": "s",
        "apiVersion": "pagefleet.io/v1alpha1",
    }


def test_what_nobody_tells_is_not_found_rather_than_zero() -> None:
    for metric, words in ((WAITING, "n/s: no pod that is ready tells"), ("speed", "no metric speed; there are")):
        with pytest.raises(NotServed, match=words):
            wire.values(Question("n", "pods", "s", metric, {}), [])


def test_the_discovery_names_every_metric_of_both_kinds() -> None:
    document = wire.discovery("/apis/custom.metrics.k8s.io/v1beta2")
    assert document is not None
    names = {each["name"] for each in document["resources"]}
    assert names == {
        f"{owner}/{metric}" for owner in ("pods", "inferenceservices.pagefleet.io") for metric in CustomMetric
    }
    assert wire.discovery("/apis/custom.metrics.k8s.io") is not None
    assert wire.discovery("/apis") is None


def test_a_refusal_is_a_status_of_kubernetes() -> None:
    assert wire.failure(404, "why")["reason"] == "NotFound"
    assert wire.failure(404, "why")["code"] == 404
