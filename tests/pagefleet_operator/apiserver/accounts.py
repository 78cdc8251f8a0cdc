"""Operators that may do less than an administrator."""

import json
from pathlib import Path

from tests.pagefleet_operator.apiserver.api import Api

_ACCOUNT = "operator"
_RBAC = "rbac.authorization.k8s.io"


def account(api: Api, admin: Path, folder: Path, namespace: str) -> Path:
    """A kubeconfig of a new ServiceAccount in `namespace` that may do nothing yet."""
    api.create("serviceaccounts", {"metadata": {"name": _ACCOUNT, "namespace": namespace}})
    answer = api.call("POST", api.path("serviceaccounts", namespace, _ACCOUNT) + "/token", {"spec": {}})
    document = json.loads(admin.read_text())
    document["users"][0]["user"] = {"token": answer["status"]["token"]}
    target = folder / "restricted"
    target.write_text(json.dumps(document))
    return target


def allow(api: Api, account_namespace: str, namespace: str, resource: str = "*") -> None:
    """Let that account do everything with one kind of objects, or all kinds, in `namespace`."""
    meta = {"name": _ACCOUNT, "namespace": namespace}
    rule = {"apiGroups": ["*"], "resources": [resource], "verbs": ["*"]}
    api.create("roles", {"metadata": meta, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": account_namespace}
    role = {"apiGroup": _RBAC, "kind": "Role", "name": _ACCOUNT}
    api.create("rolebindings", {"metadata": meta, "roleRef": role, "subjects": [subject]})


def forbid(api: Api, namespace: str) -> None:
    """Take it back."""
    api.delete("rolebindings", namespace, _ACCOUNT)
    api.delete("roles", namespace, _ACCOUNT)
