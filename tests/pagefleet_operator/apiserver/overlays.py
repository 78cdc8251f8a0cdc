"""Overlays as users write them."""

from typing import Any

Json = dict[str, Any]


def _engine(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def _spec(**fields: Any) -> Json:
    return {"spec": fields}


def _variable(path: str) -> Json:
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": path}}}


_SIDECAR: Json = {"name": "sidecar", "image": "sidecar:1", "env": [{"name": "A", "value": "1"}]}
_TERM = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h200"]}]}
_NODE_AFFINITY = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}
_HALF_CPU = {"requests": {"cpu": "0.5"}, "limits": {"memory": "1024Mi"}}
_TOKEN = {"serviceAccountToken": {"path": "token", "audience": "vault"}}
_POD_NAME = {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}

OVERLAYS: dict[str, Json] = {
    "nothing": {},
    "labels and annotations": {"metadata": {"labels": {"team": "a"}, "annotations": {"example.com/x": "1"}}},
    "node selector": _spec(nodeSelector={"pool": "gpu"}),
    "tolerations": _spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
    "affinity": _spec(affinity={"nodeAffinity": _NODE_AFFINITY}),
    "priority": _spec(priorityClassName="high", preemptionPolicy="Never"),
    "own service account": _spec(serviceAccountName="reader", automountServiceAccountToken=True),
    "pull secrets": _spec(imagePullSecrets=[{"name": "registry"}]),
    "host aliases": _spec(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["hub"]}]),
    "dns": _spec(
        dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.10"], "options": [{"name": "ndots", "value": "2"}]}
    ),
    "runtime class": _spec(runtimeClassName="nvidia", schedulerName="other"),
    "spread over zones": _spec(
        topologySpreadConstraints=[{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]
    ),
    "no spread": _spec(topologySpreadConstraints=[{"$patch": "replace"}]),
    "no spread by null": _spec(topologySpreadConstraints=None),
    "spread changed": _spec(topologySpreadConstraints=[{"topologyKey": "kubernetes.io/hostname", "maxSkew": 2}]),
    "spread deleted": _spec(topologySpreadConstraints=[{"topologyKey": "kubernetes.io/hostname", "$patch": "delete"}]),
    "another user": _spec(securityContext={"runAsUser": 1000, "fsGroup": None}),
    "security replaced": _spec(securityContext={"$patch": "replace", "runAsNonRoot": True}),
    "security deleted": _spec(securityContext={"$patch": "delete"}),
    "supplemental groups": _spec(securityContext={"supplementalGroups": [44, 109]}),
    "sidecar": _spec(containers=[_SIDECAR]),
    "sidecar and engine": _spec(containers=[{"name": "engine", "env": [{"name": "B", "value": "2"}]}, _SIDECAR]),
    "init containers": _spec(initContainers=[{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]),
    "restartable init container": _spec(initContainers=[{"name": "proxy", "image": "i", "restartPolicy": "Always"}]),
    "variables": _engine(env=[{"name": "B", "value": "2"}, {"name": "A", "value": "$(B)"}]),
    "variable changed": _engine(env=[{"name": "NCCL_NVLS_ENABLE", "value": "1"}]),
    "variable deleted": _engine(env=[{"name": "NCCL_NVLS_ENABLE", "$patch": "delete"}]),
    "variable from the pod": _engine(env=[_variable("status.podIP")]),
    "variable from a limit": _engine(
        env=[{"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1024Ki"}}}]
    ),
    "variable from a limit in bytes": _engine(
        env=[{"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}]
    ),
    "variable from a secret": _engine(
        env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}}]
    ),
    "empty variable": _engine(env=[{"name": "A", "value": ""}], stdin=False),
    "zero values": _spec(
        hostNetwork=False,
        hostPID=False,
        tolerations=[{"key": "a", "value": "", "operator": "Equal"}],
        containers=[{"name": "engine", "volumeMounts": [{"name": "tmp", "mountPath": "/a", "readOnly": False}]}],
        volumes=[{"name": "c", "persistentVolumeClaim": {"claimName": "c", "readOnly": False}}],
    ),
    "empty objects": _spec(affinity={}, nodeSelector={}, containers=[{"name": "engine", "securityContext": {}}]),
    "empty sidecar parts": _spec(containers=[{**_SIDECAR, "resources": {}, "args": [], "securityContext": {}}]),
    "zero seconds": _engine(readinessProbe={"initialDelaySeconds": 0}),
    "volume and mount": _spec(
        volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        containers=[{"name": "engine", "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}]}],
    ),
    "host path in place of tmp": _spec(
        volumes=[{"name": "tmp", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/scratch"}}]
    ),
    "bounded tmp": _spec(volumes=[{"name": "tmp", "emptyDir": {"sizeLimit": "1024Mi"}}]),
    "volume and mount deleted": _spec(
        volumes=[{"name": "shm", "$patch": "delete"}],
        containers=[{"name": "engine", "volumeMounts": [{"mountPath": "/dev/shm", "$patch": "delete"}]}],
    ),
    "projected token": _spec(volumes=[{"name": "t", "projected": {"sources": [_TOKEN, _POD_NAME]}}]),
    "claim template": _spec(volumes=[{"name": "s", "ephemeral": {"volumeClaimTemplate": {"spec": _CLAIM}}}]),
    "capability": _engine(securityContext={"capabilities": {"add": ["SYS_NICE"]}}),
    "writable root": _engine(securityContext={"readOnlyRootFilesystem": False}),
    "slower start": _engine(startupProbe={"failureThreshold": 7200}),
    "sidecar with all": _spec(
        containers=[
            {
                **_SIDECAR,
                "resources": _HALF_CPU,
                "ports": [{"containerPort": 9000}, {"containerPort": 9000, "protocol": "UDP"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": 9000, "httpHeaders": [{"name": "A", "value": "b"}]}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
            }
        ]
    ),
    "host network": _spec(hostNetwork=True, hostIPC=True),
    "hostname": _spec(hostname="h", subdomain="d", shareProcessNamespace=True),
    "working folder": _spec(containers=[{"name": "engine", "workingDir": "/w", "tty": None}]),
}

REFUSED: dict[str, tuple[Json, str]] = {
    "two sources in one volume": (
        _spec(volumes=[{"name": "tmp", "hostPath": {"path": "/scratch"}}]),
        "may not specify more than 1 volume type",
    ),
    "volume deleted, mount left": (
        _spec(volumes=[{"name": "shm", "$patch": "delete"}]),
        'volumeMounts[1].name: Not found: "shm"',
    ),
    "a number for a string": (
        _engine(env=[{"name": "A", "value": 1}]),
        "expected string, got &value.valueUnstructured{Value:1}",
    ),
    "a list for an object": (_spec(dnsConfig=[1]), "dnsConfig"),
    "an unknown field": (_engine(workDir="/w"), ".workDir: field not declared in schema"),
    "no policy": (_spec(dnsPolicy="Maybe"), "dnsPolicy"),
}
"""Each with some of the API server's words."""
