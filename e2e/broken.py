"""Services that cannot come up, each for another cause: how it is made, who knows it first, how it is mended."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from e2e import manifests
from e2e.kubectl import Json, Kubectl
from e2e.service import KIND, condition
from pagefleet_api import labels
from pagefleet_api.reasons import Reason

DEVICE = "example.com/room"
"""A resource of this story's own, so that no other story takes it."""

Known = Callable[[Json], bool]


class Broken(NamedTuple):
    """One service and its fault."""

    name: str
    reason: Reason
    words: tuple[str, ...]
    """What the message must have in it."""
    spec: Mapping[str, Any]
    watched: str
    """Kind of the objects that tell the cause before the operator can."""
    known: Known
    mend: Callable[[Kubectl], object]

    def manifest(self) -> str:
        engine = {"device": "paced", **self.spec.get("engine", {})}
        return manifests.text(manifests.service(self.name, **{**self.spec, "engine": engine}))

    def is_its(self, body: Json) -> bool:
        """Whether an object of the watched kind is, or is about, this service's pod or Deployment."""
        about = (body.get("involvedObject") or body["metadata"])["name"]
        return bool(about == self.name or about.startswith(f"{self.name}-"))


def told(broken: Broken) -> Known:
    """Whether the service's condition gives its cause."""

    def holds(body: Json) -> bool:
        ready = condition(body, "Ready") or {}
        return body["metadata"]["name"] == broken.name and ready.get("reason") == broken.reason

    return holds


def mended(broken: Broken) -> Known:
    """Whether the cause is gone: the engine loads its model, or serves."""

    def holds(body: Json) -> bool:
        ready = condition(body, "Ready") or {}
        fine = ready.get("reason") in {Reason.STARTING, Reason.SERVING}
        return body["metadata"]["name"] == broken.name and fine

    return holds


def _container(body: Json) -> Json:
    statuses = body.get("status", {}).get("containerStatuses") or [{}]
    first: Json = statuses[0]
    return first


def _waits(*reasons: str) -> Known:
    return lambda body: _container(body).get("state", {}).get("waiting", {}).get("reason") in reasons


def _ended(body: Json) -> bool:
    parts = (_container(body).get(part, {}) for part in ("state", "lastState"))
    return any("terminated" in part for part in parts)


def _unplaced(body: Json) -> bool:
    return (condition(body, "PodScheduled") or {}).get("status") == "False"


def _no_pods(body: Json) -> bool:
    return (condition(body, "ReplicaFailure") or {}).get("status") == "True"


def _not_mounted(body: Json) -> bool:
    return bool(body["reason"] == "FailedMount") and not unsure(body["message"])


def _no_secret(body: Json) -> bool:
    waiting = _container(body).get("state", {}).get("waiting", {})
    return waiting.get("reason") == "CreateContainerConfigError" and not unsure(waiting["message"])


def unsure(message: str) -> bool:
    """A kubelet on a busy machine says so of a Secret or ConfigMap before it knows whether there is one."""
    return "cache: timed out waiting for the condition" in message


def _patched(name: str, **spec: Any) -> Callable[[Kubectl], object]:
    return lambda kubectl: kubectl.run("patch", KIND, name, "--type=merge", "-p", json.dumps({"spec": spec}))


def _without(*what: str) -> Callable[[Kubectl], object]:
    return lambda kubectl: kubectl.run("delete", *what)


def _created(*what: str) -> Callable[[Kubectl], object]:
    return lambda kubectl: kubectl.run("create", *what)


def _memory(limit: str) -> dict[str, Any]:
    return {"requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"memory": limit}}


def _devices(count: int) -> dict[str, Any]:
    return {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "2Gi", DEVICE: count}}


NOWHERE = "file:///no/model/here"
TEMPLATE = {"configMapKeyRef": {"name": "template", "key": "chat"}}
POLICY, WEBHOOK, QUOTA = "story-causes", "story-causes.pagefleet.io", "no-pods"
COMPLAINT = "pods of this team need a cost centre"

FAULTS = (
    Broken(
        "pull",
        Reason.IMAGE_PULL_FAILED,
        ("cannot pull localhost/nowhere:1: ", "connection refused"),
        {"engine": {"image": "localhost/nowhere:1"}},
        "pods",
        _waits("ErrImagePull", "ImagePullBackOff"),
        _patched("pull", engine={"image": None}),
    ),
    Broken(
        "memory",
        Reason.OUT_OF_MEMORY,
        ("passed its memory limit of 64Mi", "exit code "),
        {"resources": _memory("64Mi")},
        "pods",
        _ended,
        _patched("memory", resources=_memory("2Gi")),
    ),
    Broken(
        "model",
        Reason.CRASH_LOOP,
        ("exit code 1, ", NOWHERE),
        {"model": {"uri": NOWHERE}},
        "pods",
        _ended,
        _patched("model", model={"uri": manifests.MODEL}),
    ),
    Broken(
        "room",
        Reason.UNSCHEDULABLE,
        (f"Insufficient {DEVICE}", f"it needs 12 {DEVICE}: 8 free on the node with most left, 11 of 16 on all nodes"),
        {"resources": _devices(12)},
        "pods",
        _unplaced,
        _patched("room", resources=_devices(1)),
    ),
    Broken(
        "keys",
        Reason.CONFIG_MISSING,
        ('secret "keys" not found',),
        {"engine": {"apiKeysSecretRef": {"name": "keys"}}},
        "pods",
        _no_secret,
        _created("secret", "generic", "keys", "--from-literal=one=secret"),
    ),
    Broken(
        "template",
        Reason.CONFIG_MISSING,
        ("FailedMount: ", 'configmap "template" not found'),
        {"engine": {"chatTemplate": TEMPLATE}},
        "events",
        _not_mounted,
        _created("configmap", "template", "--from-literal=chat={{ messages[0].content }}"),
    ),
    Broken(
        "denied",
        Reason.ADMISSION_DENIED,
        (COMPLAINT,),
        {},
        "deployments",
        _no_pods,
        _without("validatingadmissionpolicybinding", POLICY),
    ),
    Broken(
        "quota",
        Reason.QUOTA_EXCEEDED,
        (f"exceeded quota: {QUOTA}, requested: pods=1, used: pods=0, limited: pods=0",),
        {},
        "deployments",
        _no_pods,
        _without("resourcequota", QUOTA),
    ),
    Broken(
        "webhook",
        Reason.ADMISSION_DENIED,
        (f'failed calling webhook "{WEBHOOK}"', "connection refused"),
        {},
        KIND,
        lambda body: True,
        _without("validatingwebhookconfiguration", WEBHOOK),
    ),
)


def _own(name: str) -> Json:
    return {"matchLabels": labels.selector(name)}


def _rule(group: str, plural: str) -> Json:
    return {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural]}


ADMISSION: tuple[Json, ...] = (
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "matchConstraints": {"resourceRules": [_rule("", "pods")], "objectSelector": _own("denied")},
            "validations": [{"expression": "false", "message": COMPLAINT}],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [
            {
                "name": WEBHOOK,
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "rules": [_rule("apps", "deployments")],
                "objectSelector": _own("webhook"),
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 1,
            }
        ],
    },
)
"""What refuses the pods of `denied` and does not answer for the Deployment of `webhook`."""


def admission_is_gone(kubectl: Kubectl) -> None:
    """What a story that ended early has left of it, for the whole cluster."""
    for body in ADMISSION:
        kubectl.run("delete", body["kind"], body["metadata"]["name"], "--ignore-not-found")


def refuses_pods(kubectl: Kubectl) -> bool:
    """Whether the policy counts already: the API server takes it in after a moment. Not under Pod Security, which
    refuses such a plain pod first.
    """
    words = ("run", "probe", "--image=none", "--dry-run=server", f"--labels={_labels('denied')}")
    return COMPLAINT in kubectl.attempt(*words).stderr


def _labels(name: str) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.selector(name).items())


def quota() -> Json:
    """A quota that lets no pod in."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": QUOTA},
        "spec": {"hard": {"pods": "0"}},
    }


def takes_devices(name: str, count: int) -> Json:
    """A pod that asks for devices and is placed; it never has to run."""
    container = {"name": "c", "image": "none", "resources": {"limits": {DEVICE: str(count)}}}
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{**container, "securityContext": restricted}],
        },
    }
