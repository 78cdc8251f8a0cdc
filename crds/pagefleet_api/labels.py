"""Labels, annotations, ports and object names that Pagefleet puts on what it makes."""

import hashlib

GROUP = "pagefleet.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"

FIELD_MANAGER = "pagefleet"

MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
SERVICE = "pagefleet.io/service"
"""Names the owning InferenceService; part of every selector, so it never changes on a living pod."""
SERVING = "pagefleet.io/serving"
"""`"true"` in the pod template and the Service's selector, not in the Deployment's: flipping it to
`"false"` on one pod takes that pod out of the Service while its ReplicaSet keeps it."""
SERVING_TRUE = "true"
SERVING_FALSE = "false"

SHARD = "pagefleet.io/shard"
"""Label of the user's on an InferenceService: which operators run it. Without it, those without a shard do."""
OPERATOR = "pagefleet.io/operator"
"""Annotation on a Deployment: the Lease (`namespace/name`) of the operators that wrote it."""

DRAIN_STARTED = "pagefleet.io/drain-started"
"""Annotation on a draining pod: RFC 3339 time at which the label was flipped."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation that the ReplicaSet controller reads when it chooses which pod goes."""

RUNTIME = "pagefleet.io/runtime"
"""Label on pods of engines that are not ours: which one it is. A pod without it has our own."""
METRICS = "pagefleet.io/metrics"
"""Annotation on pods of a custom engine: port, path and names of its metrics, as JSON."""
TEMPLATE = "pagefleet.io/template"
"""Annotation on the Deployment: digest of the pod template that the service asks for, rolled out or refused. On a
LeaderWorkerSet and the pods of its groups: digest of the templates that they are made of."""
COMPLETE = "pagefleet.io/complete-template"
"""Annotation on a LeaderWorkerSet: `TEMPLATE` once all groups of that served; absent until then."""
TRIAL = "pagefleet.io/rollout-trial"
"""Annotation on the Deployment: how far the trial of that template is; absent without one."""
GROUP_OF = "pagefleet.io/group-of"
"""On the pods of a group beside its leader: what `SERVICE` is on the leader. They lack that one, so that whoever
selects a service's pods finds replicas."""
LWS_PREFIX = "leaderworkerset.sigs.k8s.io/"
"""Of labels by which the controller of LeaderWorkerSets knows pods, whoever made them."""
GROUP_INDEX = f"{LWS_PREFIX}group-index"
"""Label of LWS on every pod of a group: the place of the group, from 0; the highest goes first."""
MODEL = "pagefleet.io/model"
"""On what downloads a model onto a claim: the model's name in the cache."""
NODE_MODEL = f"model.{GROUP}"
"""Prefix of labels on nodes, one for each model of the node cache: whether the node has it, or is to get it."""
NODE_MODEL_READY = "ready"
NODE_MODEL_WANTED = "wanted"
FETCH = "pagefleet.io/fetch"
"""On the pods of such a Job: the Job's name."""

CONTAINER = "engine"
FETCH_CONTAINER = "fetch-model"
"""The container that downloads a model, in an engine's pod or in a Job's."""
FETCH_ADAPTER_PREFIX = "fetch-adapter-"
"""Before a number: the containers that download adapters, in an engine's pod."""
FETCH_DRAFT_CONTAINER = "fetch-draft"
"""The container that downloads a draft, in an engine's pod."""
COPY_CONTAINER = "copy-model"
"""The container of a model's image that copies the model out of it, in an engine's pod."""
COPIER_CONTAINER = "place-copier"
"""The one before it, of an image of ours, which brings the program for that."""
OWN_INIT_CONTAINERS = (FETCH_CONTAINER, FETCH_DRAFT_CONTAINER, COPY_CONTAINER, COPIER_CONTAINER)
"""Names that no other container of a pod may have."""
PORT_NAME = "http"
SERVICE_PORT = 80
ENGINE_PORT = 8000
ADMIN_PORT_NAME = "admin"
ADMIN_PORT = 8001
API_KEY_ENV_PREFIX = "PAGEFLEET_API_KEY_"
"""Every environment variable that starts with this holds one API key of the engine."""

NAME_LIMIT = 63
_HASH_LENGTH = 8
_GROUP_SET_BASE = 36

FETCH_DIGEST = f"{GROUP}/fetch-digest"
"""Annotation of a download Job: digest of how it is made; while it is not over, another way begins it anew."""


def child_name(service: str) -> str:
    """The name of a service's children: its own, or cut with a hash when over 63 characters.

    A Service's name and a label's value hold at most 63 characters while a resource's name may have
    253, and dots, which neither a Service name nor a pod's host name may have. The hash is of the whole
    name, so two long names never meet.
    """
    plain = "." not in service and not service[:1].isdigit()
    if len(service) <= NAME_LIMIT and plain:
        return service
    digest = hashlib.sha256(service.encode()).hexdigest()[:_HASH_LENGTH]
    base = service.replace(".", "-")
    base = base if base[:1].isalpha() else f"s-{base}"
    return f"{base[: NAME_LIMIT - _HASH_LENGTH - 1].rstrip('-')}-{digest}"


def group_set_name(service: str) -> str:
    """The name of a service's LeaderWorkerSet, short enough for what its StatefulSets add to it in labels of pods.

    Never the child name itself: LWS makes a headless Service of the set's name, and the service has a Service already.
    """
    digest = hashlib.sha256(service.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{child_name(service)[:_GROUP_SET_BASE].rstrip('-')}-{digest}"


def selector(service: str) -> dict[str, str]:
    """Labels that pick every pod of a service, serving or draining."""
    return {MANAGED_BY: FIELD_MANAGER, SERVICE: child_name(service)}


def selector_text(service: str) -> str:
    """The same as a label selector in a URL has it."""
    return ",".join(f"{name}={value}" for name, value in sorted(selector(service).items()))


def worker(service: str) -> dict[str, str]:
    """Labels on the pods of a service's groups that are no leaders."""
    return {INSTANCE: child_name(service), MANAGED_BY: FIELD_MANAGER, GROUP_OF: child_name(service)}


def common(service: str) -> dict[str, str]:
    """Labels on every child of a service."""
    return {NAME: "pagefleet-engine", INSTANCE: child_name(service), **selector(service)}
