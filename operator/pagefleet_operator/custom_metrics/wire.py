"""What is asked of the custom metrics API, and its documents (pure).

Source: https://github.com/kubernetes/metrics/tree/master/pkg/apis/custom_metrics/v1beta2
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pagefleet_api import labels
from pagefleet_api.custom_metrics import API_GROUP, VERSION, CustomMetric
from pagefleet_operator.facts.observed import format_second
from pagefleet_operator.published import Reading

Json = dict[str, Any]
ROOT = f"/apis/{API_GROUP}"
GROUP_VERSION = f"{API_GROUP}/{VERSION}"
PODS = "pods"
SERVICES = f"{labels.PLURAL}.{labels.GROUP}"
ALL = "*"
_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 503: "ServiceUnavailable"}


class NotServed(Exception):
    """A question without an answer: its HTTP status, and why in words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Question(NamedTuple):
    """One metric of one object, or of all that a selector takes."""

    namespace: str
    resource: str
    name: str
    metric: str
    selector: Mapping[str, str]

    @property
    def of_all(self) -> bool:
        """No object is named."""
        return self.name == ALL

    @property
    def known_metric(self) -> CustomMetric:
        """The metric. Raises NotServed for one that there is not."""
        try:
            return CustomMetric(self.metric)
        except ValueError as error:
            raise NotServed(404, f"no metric {self.metric}; there are {', '.join(CustomMetric)}") from error


def parse(path: str, query: Mapping[str, str]) -> Question:
    """The question in a URL, decoded. Raises NotServed for one that is none."""
    parts = path.removeprefix(f"{ROOT}/{VERSION}/").split("/")
    if not path.startswith(f"{ROOT}/{VERSION}/") or len(parts) != 5 or parts[0] != "namespaces":
        wanted = f"{ROOT}/{VERSION}/namespaces/NAMESPACE/{PODS} or {SERVICES}/NAME or {ALL}/METRIC"
        raise NotServed(404, f"{path} is not served; ask for {wanted}")
    _, namespace, resource, name, metric = parts
    if resource not in (PODS, SERVICES):
        raise NotServed(404, f"no metrics of {resource}; there are those of {PODS} and {SERVICES}")
    if query.get("metricLabelSelector"):
        raise NotServed(400, "metricLabelSelector: these metrics have no labels; leave metric.selector out")
    return Question(namespace, resource, name, metric, requirements(query.get("labelSelector", "")))


def requirements(selector: str) -> Mapping[str, str]:
    """A label selector of equalities. Raises NotServed for any other."""
    wanted = {}
    for part in filter(None, selector.split(",")):
        name, equals, value = part.replace("==", "=").partition("=")
        if not equals or name.endswith("!"):
            raise NotServed(400, f"labelSelector: {part!r} is no equality; give NAME=VALUE, joined by commas")
        wanted[name.strip()] = value.strip()
    return wanted


def selects(wanted: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether labels are as a selector wants them."""
    return all(given.get(name) == value for name, value in wanted.items())


def values(question: Question, readings: Iterable[tuple[str, Reading]]) -> Json:
    """The answer, with what is known of each object by name. Raises NotServed where nothing is."""
    metric = question.known_metric
    items = [_item(question, name, reading.values[metric], reading.when) for name, reading in readings
             if metric in reading.values]  # fmt: skip
    if not items:
        whose = f"{question.resource} {question.namespace}/{question.name}"
        raise NotServed(404, f"{whose}: no pod that is ready tells {metric} now")
    return {"kind": "MetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}


def _item(question: Question, name: str, value: float, when: datetime) -> Json:
    kind, version = ("Pod", "v1") if question.resource == PODS else (labels.KIND, labels.API_VERSION)
    return {
        "describedObject": {"kind": kind, "namespace": question.namespace, "name": name, "apiVersion": version},
        "metric": {"name": question.metric, "selector": None},
        "timestamp": format_second(when),
        "value": f"{round(value * 1000)}m",
    }


def discovery(path: str) -> Json | None:
    """The document at one of the paths by which clients find out what there is; None for any other path.

    Not of `/apis`: there the aggregator takes aggregated discovery or none, and without it asks for each version.
    """
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    group = {"name": API_GROUP, "versions": [version], "preferredVersion": version}
    documents: dict[str, Json] = {
        ROOT: {"kind": "APIGroup", "apiVersion": "v1", **group},
        f"{ROOT}/{VERSION}": {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": GROUP_VERSION,
            "resources": [_resource(f"{owner}/{metric}") for owner in (PODS, SERVICES) for metric in CustomMetric],
        },
    }
    return documents.get(path)


def _resource(name: str) -> Json:
    return {"name": name, "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}


def failure(status: int, message: str) -> Json:
    """A refusal as `metav1.Status`."""
    reason = _REASONS.get(status, "")
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason,
            "code": status}  # fmt: skip
