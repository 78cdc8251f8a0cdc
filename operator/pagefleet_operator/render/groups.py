"""Groups of pods that share one copy of the model, as a LeaderWorkerSet.

Source: https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/
"""

from typing import Any

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator.render import pod

Manifest = dict[str, Any]

_AFTER_START = {"leaderworkerset.sigs.k8s.io/experimental-recreate-group-after-start": "true"}
"""A group is made anew when one of its pods was restarted, but not while one has not come to run: else nobody could
read why it does not. Init containers' restarts count too: what they bring must outlive their pod, or come again in one
try, as a copy of what the node has."""


def templates(service: InferenceService, images: pod.PodImages) -> Manifest:
    """How many pods a group has, and the templates of its leader, which serves, and of the others."""
    return {
        "size": service.spec.engine.parallelism.pipeline,
        "leaderTemplate": pod.template(service, images),
        "workerTemplate": pod.worker_template(service, images),
    }


def spec(made: Manifest, digest: str, *, replicas: int, max_surge: int | str, max_unavailable: int | str) -> Manifest:
    """Of the LeaderWorkerSet. Each pod carries the `digest` of what it is made of.

    One that is lost takes its group with it: what is computed is spread over all of them.
    """
    marked = {name: _marked(part, digest) if isinstance(part, dict) else part for name, part in made.items()}
    return {
        "replicas": replicas,
        "startupPolicy": "LeaderCreated",
        "networkConfig": {"subdomainPolicy": "Shared"},
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {
                "partition": 0,
                "maxSurge": max_surge,
                "maxUnavailable": _unavailable(max_surge, max_unavailable, replicas),
            },
        },
        "leaderWorkerTemplate": {"restartPolicy": "RecreateGroupOnPodRestart", **marked},
    }


def _unavailable(max_surge: int | str, max_unavailable: int | str, replicas: int) -> int | str:
    """What LWS takes: it refuses a share that comes to no group where there is none beside either, while a Deployment
    makes that one.
    """
    if max_surge not in (0, "0%") or isinstance(max_unavailable, int):
        return max_unavailable
    return max(1, int(max_unavailable.removesuffix("%")) * replicas // 100)


def selector(service: str) -> Manifest:
    """Of all pods of a service's groups, but for leaders that drain."""
    pods = {name: value for name, value in labels.worker(service).items() if name != labels.GROUP_OF}
    drains = {"key": labels.SERVING, "operator": "NotIn", "values": [labels.SERVING_FALSE]}
    return {"matchLabels": pods, "matchExpressions": [drains]}


def annotations() -> dict[str, str]:
    """Of the LeaderWorkerSet, for its controller."""
    return dict(_AFTER_START)


def _marked(template: Manifest, digest: str) -> Manifest:
    meta = template["metadata"]
    notes = {**(meta.get("annotations") or {}), labels.TEMPLATE: digest}
    return {**template, "metadata": {**meta, "annotations": notes}}
