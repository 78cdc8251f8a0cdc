"""Where objects of each kind live in the Kubernetes API."""

from typing import NamedTuple

from pagefleet_api import labels


class Kind(NamedTuple):
    """Where objects of a kind live in the API."""

    name: str
    api_version: str
    plural: str

    def path(self, namespace: str | None, *rest: str) -> str:
        """The URL path of the collection, or of what `rest` names in it."""
        prefix = "api" if "/" not in self.api_version else "apis"
        middle = ("namespaces", namespace) if namespace else ()
        return "/".join(("", prefix, self.api_version, *middle, self.plural, *rest))


INFERENCE_SERVICE = Kind(labels.KIND, labels.API_VERSION, labels.PLURAL)
DEPLOYMENT = Kind("Deployment", "apps/v1", "deployments")
SERVICE = Kind("Service", "v1", "services")
SERVICE_ACCOUNT = Kind("ServiceAccount", "v1", "serviceaccounts")
DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets")
REPLICA_SET = Kind("ReplicaSet", "apps/v1", "replicasets")
JOB = Kind("Job", "batch/v1", "jobs")
POD = Kind("Pod", "v1", "pods")
NODE = Kind("Node", "v1", "nodes")
VOLUME = Kind("PersistentVolume", "v1", "persistentvolumes")
CLAIM = Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims")
DAEMON_SET = Kind("DaemonSet", "apps/v1", "daemonsets")
SECRET = Kind("Secret", "v1", "secrets")
CONFIG_MAP = Kind("ConfigMap", "v1", "configmaps")
API_SERVICES = Kind("APIService", "apiregistration.k8s.io/v1", "apiservices")
ACCESS_REVIEW = Kind("SubjectAccessReview", "authorization.k8s.io/v1", "subjectaccessreviews")
LEASE = Kind("Lease", "coordination.k8s.io/v1", "leases")
EVENT = Kind("Event", "events.k8s.io/v1", "events")
POD_EVENT = Kind("Event", "v1", "events")
"""Only under this version can Events be chosen by the object that they are about."""
GROUP_SET = Kind("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "leaderworkersets")
"""Of https://lws.sigs.k8s.io, which a cluster may lack."""
WORKLOADS = {kind.name: kind for kind in (DEPLOYMENT, GROUP_SET)}
"""What a service's pods are made by, one or the other."""
CHILDREN = {kind.name: kind for kind in (SERVICE_ACCOUNT, SERVICE, DISRUPTION_BUDGET, *WORKLOADS.values())}
"""What a service may own, by kind: written when the spec asks for it, removed when it no longer does."""
KEPT = {kind.name: kind for kind in (INFERENCE_SERVICE, *CHILDREN.values(), REPLICA_SET, JOB, POD)}
"""Everything that the watch cache holds, by kind."""
WATCHED = {name: kind for name, kind in KEPT.items() if kind is not GROUP_SET}
"""What of it is watched; sets, whose kind may come and go, are listed (`group_watch`)."""
