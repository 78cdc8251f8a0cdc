"""A model on nodes: the DaemonSet that fetches and holds it, and what makes it a volume of a user's namespace.

The DaemonSet alone touches the node's disk, in the operator's namespace. It writes as a user that no pod under the
restricted Pod Security Standard may be, and the volume is mounted read-only by the kubelet whoever asks, so that what
services share stays what was verified.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pagefleet_api import labels
from pagefleet_api.download import HELD
from pagefleet_api.model_source import ModelSource
from pagefleet_api.service import InferenceService
from pagefleet_operator.plan.node_cache import NodeModel, node_label
from pagefleet_operator.plan.node_placing import tolerations
from pagefleet_operator.render.fetcher import fetch_container
from pagefleet_operator.render.model import claim_name
from pagefleet_operator.render.prefetch import owners

Part = dict[str, Any]

_BASE, _DIGEST, _SHORT_DIGEST = 24, 32, 10
"""Characters of names. A tenant chooses what is hashed, so a digest must be long enough that nobody finds its twin."""
NODE_CACHE = "pagefleet-node-cache"
"""The name that everything of ours has as its label."""
_SIZE = "1Mi"
"""Of volume and claim: required, compared with each other, and with quotas, and otherwise without a meaning."""
_CREDENTIALS = frozenset(
    {
        *("HF_TOKEN", "HF_ENDPOINT", "HTTP_AUTHORIZATION"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
        *("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
        *("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_SKIP_SIGNATURE"),
        *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BASE_URL"),
        *(
            "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_STORAGE_ENDPOINT",
        ),
    }
)
"""What goes from a user's Secret into the environment of a pod that sees every model of its node.

Values alone: none that names a file, as its content would go to an address that another one names.
"""


class NodeStore(NamedTuple):
    """Where nodes keep models, and what fetches them."""

    namespace: str
    image: str
    path: str
    limit: str | None = None
    pull_secrets: tuple[str, ...] = ()


def node_model_name(service: InferenceService) -> str:
    """The name of a service's model on nodes: with credentials, whose they are is part of it.

    So nobody reads what another namespace's token has fetched.
    """
    model = service.spec.model
    whose = [] if model.secret_ref is None else [service.namespace, model.secret_ref.name]
    base = model.key.rpartition("-")[0][:_BASE].rstrip("-")
    return f"{base}-{_digest(json.dumps([model.uri, model.revision, *whose]))[:_DIGEST]}"


def node_model(users: Sequence[InferenceService], store: NodeStore) -> NodeModel:
    """Everything that is to exist for one model; `users` (at least one) are all services with it, of any namespace."""
    name, by_namespace = node_model_name(users[0]), _by_namespace(users)
    secret = users[0].spec.model.secret_ref
    volumes = {namespace: _volume(name, namespace, mine, store) for namespace, mine in by_namespace.items()}
    return NodeModel(
        name=name,
        users=tuple(users),
        daemon_set=_daemon_set(name, users, store),
        volumes=volumes,
        claims={space: _claim(name, space, mine, volumes[space]) for space, mine in by_namespace.items()},
        secret=None if secret is None else secret.name,
    )


def copied_secret(model: NodeModel, daemon_set: Mapping[str, Any], data: Mapping[str, str]) -> Part:
    """The credentials for the DaemonSet's pods, which go with it. `data` is as the user's Secret has it, in base64."""
    meta = daemon_set["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": _marks(model.name),
            "ownerReferences": [owner],
        },
        "type": "Opaque",
        "data": dict(data),
    }


def credentials(secret: Mapping[str, Any]) -> dict[str, str]:
    """Keys of a user's Secret that a download takes, with their values in base64."""
    return {key: str(value) for key, value in (secret.get("data") or {}).items() if key in _CREDENTIALS}


def _daemon_set(name: str, users: Sequence[InferenceService], store: NodeStore) -> Part:
    pod = _pod(name, users, store)
    digest = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name,
            "namespace": store.namespace,
            "labels": _marks(name),
            "annotations": {labels.FETCH_DIGEST: digest},
        },
        "spec": {
            "selector": {"matchLabels": {labels.MODEL: name}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": {labels.NAME: NODE_CACHE, labels.MODEL: name}}, "spec": pod},
        },
    }


def _pod(name: str, users: Sequence[InferenceService], store: NodeStore) -> Part:
    """Only on nodes that have the model's label, whatever its value: see `plan.node_cache`."""
    here = {"matchExpressions": [{"key": node_label(name), "operator": "Exists"}]}
    secrets = [{"name": secret} for secret in store.pull_secrets]
    tolerated = tolerations(users)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        **({"imagePullSecrets": secrets} if secrets else {}),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}},
        **({"tolerations": tolerated} if tolerated else {}),
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(name, users[0].spec.model, store)],
        "volumes": [
            {"name": "models", "hostPath": {"path": store.path, "type": "DirectoryOrCreate"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _container(name: str, model: ModelSource, store: NodeStore) -> Part:
    """Ready once the model is whole and verified, for as long as it is."""
    limit = [] if store.limit is None else ["--limit", store.limit]
    container = fetch_container(
        store.image,
        model,
        mounts=({"name": "models", "mountPath": "/models"}, {"name": "tmp", "mountPath": "/tmp"}),
        folder=f"/models/{name}",
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        flags=["--hold", "--tell", f":{labels.ADMIN_PORT}", *limit],
    )
    copied = {} if model.secret_ref is None else {"envFrom": [{"secretRef": {"name": name}}]}
    return {
        **container,
        **copied,
        "ports": [{"name": labels.ADMIN_PORT_NAME, "containerPort": labels.ADMIN_PORT}],
        "startupProbe": {
            "httpGet": {"path": HELD, "port": labels.ADMIN_PORT_NAME},
            "periodSeconds": 3,
            "timeoutSeconds": 10,
            "failureThreshold": 10_000_000,  # a download may take days; what fails ends by itself
        },
        # Root without any capability: the owner of the folder that the kubelet makes, and of nothing else here.
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _volume(name: str, namespace: str, users: Sequence[InferenceService], store: NodeStore) -> Part:
    """The model's folder alone, for that namespace's claim alone, on nodes that say they have it."""
    has = {"key": node_label(name), "operator": "In", "values": [labels.NODE_MODEL_READY]}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{name}-{_digest(namespace)[:_SHORT_DIGEST]}", "labels": _marks(name)},
        "spec": {
            "capacity": {"storage": _SIZE},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "mountOptions": ["ro"],
            "local": {"path": f"{store.path.rstrip('/')}/{name}"},
            "claimRef": {**claim, "name": claim_name(users[0].spec.model)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [has]}]}},
        },
    }


def _claim(name: str, namespace: str, users: Sequence[InferenceService], volume: Part) -> Part:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(users[0].spec.model),
            "namespace": namespace,
            "labels": _marks(name),
            "ownerReferences": owners(users),
        },
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": _SIZE}},
            "storageClassName": "",
            "volumeName": volume["metadata"]["name"],
        },
    }


def _by_namespace(users: Sequence[InferenceService]) -> dict[str, list[InferenceService]]:
    found: dict[str, list[InferenceService]] = {}
    for user in users:
        found.setdefault(user.namespace, []).append(user)
    return found


def _marks(name: str) -> dict[str, str]:
    return {labels.MANAGED_BY: labels.FIELD_MANAGER, labels.NAME: NODE_CACHE, labels.MODEL: name}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
