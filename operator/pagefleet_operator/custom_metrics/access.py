"""Who asks, and whether they may (pure): the aggregator of the API server vouches for its users by a certificate.

Source: https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/#authentication-flow
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pagefleet_api.custom_metrics import API_GROUP, VERSION
from pagefleet_operator.custom_metrics.wire import Question

CONFIG_NAMESPACE, CONFIG_NAME = "kube-system", "extension-apiserver-authentication"
"""The ConfigMap in which the API server says how its aggregator is known."""


class Headers(Protocol):
    """A request's headers, each of which may come several times."""

    def get(self, key: str, /) -> str | None: ...
    def getall(self, key: str, default: Sequence[str], /) -> Sequence[str]: ...
    def keys(self) -> Any: ...


class User(NamedTuple):
    """Somebody whom the API server has let in."""

    name: str
    groups: tuple[str, ...]
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class FrontProxy(NamedTuple):
    """How the aggregator is known, and where it says for whom it asks."""

    authority_pem: str
    names: frozenset[str]
    """Common names that its certificate may have; empty: any."""
    user_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @classmethod
    def of(cls, data: Mapping[str, str]) -> "FrontProxy | None":
        """From the ConfigMap's data; None where the API server has no aggregator."""
        authority = data.get("requestheader-client-ca-file")
        if not authority:
            return None
        words = {name: tuple(json.loads(data.get(f"requestheader-{name}") or "[]")) for name in _LISTS}
        return cls(authority, frozenset(words["allowed-names"]), *(words[name] for name in _LISTS[1:]))

    def user(self, certificate: Mapping[str, Any] | None, headers: Headers) -> User | None:
        """For whom a request is; None unless it comes from the aggregator.

        `certificate` is the peer's, as `ssl` gives one that it has verified against `authority_pem`.
        """
        if not certificate or (self.names and not self.names & _common_names(certificate)):
            return None
        name = next((found for header in self.user_headers if (found := headers.get(header))), None)
        if name is None:
            return None
        groups = [group for header in self.group_headers for group in headers.getall(header, ())]
        if not {_AUTHENTICATED, _UNAUTHENTICATED} & {*groups}:
            groups.append(_AUTHENTICATED)  # the aggregator leaves it out when it asks for itself, as for discovery
        return User(name, tuple(groups), tuple(self._extra(headers)))

    def _extra(self, headers: Headers) -> list[tuple[str, tuple[str, ...]]]:
        found = {}
        for key in headers.keys():  # noqa: SIM118
            prefix = next((each for each in self.extra_prefixes if key.lower().startswith(each.lower())), None)
            if prefix is not None:
                found[key[len(prefix) :].lower()] = tuple(headers.getall(key, ()))
        return sorted(found.items())


_AUTHENTICATED, _UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
_LISTS = ("allowed-names", "username-headers", "group-headers", "extra-headers-prefix")


def review(user: User, question: Question | str) -> dict[str, Any]:
    """The SubjectAccessReview of a question, or of a path of the discovery."""
    spec: dict[str, Any] = {"user": user.name, "groups": list(user.groups)}
    if user.extra:
        spec["extra"] = {name: list(values) for name, values in user.extra}
    if isinstance(question, str):
        spec["nonResourceAttributes"] = {"path": question, "verb": "get"}
    else:
        spec["resourceAttributes"] = {
            "verb": "get",
            "group": API_GROUP,
            "version": VERSION,
            "namespace": question.namespace,
            "resource": question.resource,
            "name": question.name,
            "subresource": question.metric,
        }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def _common_names(certificate: Mapping[str, Any]) -> set[str]:
    return {value for names in certificate.get("subject", ()) for key, value in names if key == "commonName"}
