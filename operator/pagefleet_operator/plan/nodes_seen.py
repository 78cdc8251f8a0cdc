"""What there is of models on nodes, found by name in a time that does not grow with how much there is. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from pagefleet_api import labels
from pagefleet_operator.facts.observed import Body, Pod


class ClaimKey(NamedTuple):
    """A claim of a user's namespace."""

    namespace: str
    name: str

    @classmethod
    def of(cls, body: Body) -> "ClaimKey":
        """That of a claim, or of anything else in a namespace."""
        return cls(str(body["metadata"].get("namespace")), body["metadata"]["name"])


class Bodies(tuple[Body, ...]):
    """Objects of one kind. Each index is made once, when it is first asked for."""

    @cached_property
    def by_name(self) -> Mapping[str, Body]:
        """Of a kind without namespaces, or of one namespace."""
        return {body["metadata"]["name"]: body for body in self}

    @cached_property
    def by_key(self) -> Mapping[ClaimKey, Body]:
        """By namespace and name."""
        return {ClaimKey.of(body): body for body in self}

    @cached_property
    def by_model(self) -> Mapping[str, Sequence[Body]]:
        """Those of each model, by its name."""
        found: dict[str, list[Body]] = {}
        for body in self:
            found.setdefault(model_name(body), []).append(body)
        return found


class Pods(Bodies):
    """Pods of DaemonSets, read once for each model."""

    @cached_property
    def _known(self) -> dict[str, dict[str, Pod]]:
        return {}

    def of(self, name: str) -> Mapping[str, Pod]:
        """A model's pods that are not on their way out, by node; one without a node yet is not among them."""
        if name not in self._known:
            found = [(body, Pod.from_object(body)) for body in self.by_model.get(name, ())]
            placed = [(str((body.get("spec") or {}).get("nodeName") or ""), pod) for body, pod in found if pod.active]
            self._known[name] = {node: pod for node, pod in placed if node}
        return self._known[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSeen:
    """What there is: all nodes; DaemonSets and their pods, volumes and claims of ours.

    mounted: claims that the templates of living services mount, whatever their specs want by now. readers: nodes of
    the pods that have a claim.
    """

    nodes: Sequence[Body] = ()
    daemon_sets: Bodies = field(default_factory=Bodies)
    pods: Pods = field(default_factory=Pods)
    volumes: Bodies = field(default_factory=Bodies)
    claims: Bodies = field(default_factory=Bodies)
    mounted: Collection[ClaimKey] = field(default=frozenset())
    readers: Mapping[ClaimKey, Collection[str]] = field(default_factory=dict)

    def daemon_set(self, name: str) -> Body | None:
        """That of a model."""
        return self.daemon_sets.by_name.get(name)

    def volume(self, name: str) -> Body | None:
        """A volume by its name."""
        return self.volumes.by_name.get(name)

    def volumes_of(self, name: str) -> Sequence[Body]:
        """A model's volumes."""
        return self.volumes.by_model.get(name, ())

    def claim(self, key: ClaimKey) -> Body | None:
        """A claim, whoever made it."""
        return self.claims.by_key.get(key)

    def models(self) -> set[str]:
        """Names of the models that have a DaemonSet or a volume."""
        return {*self.daemon_sets.by_model, *self.volumes.by_model}


def model_name(body: Body) -> str:
    """The model that an object is for; an empty text where it is for none."""
    return str((body["metadata"].get("labels") or {}).get(labels.MODEL, ""))
