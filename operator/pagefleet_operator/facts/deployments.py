"""Deployments with their ReplicaSets, and LeaderWorkerSets, as frozen values, read as `observed` reads all that it
holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pagefleet_api import labels
from pagefleet_operator.facts.problems import Body, condition_of, parse_time
from pagefleet_operator.facts.trials import Trial

TEMPLATE_HASH = "pod-template-hash"
"""Label that the Deployment controller puts on pods; one value for each generation of the template."""

_REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class Progress:
    """A Deployment's condition `Progressing`."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The parts of a Deployment that decisions read, or of the LeaderWorkerSet in its place."""

    name: str
    uid: str = ""
    generation: int = 0
    observed_generation: int = 0
    replicas: int = 1
    """`spec.replicas` less the pods on trial: wanted pods, draining ones included."""
    total: int = 0
    updated: int = 0
    ready: int = 0
    available: int = 0
    progressing: Progress | None = None
    replica_failure: str | None = None
    """Why pods could not be made (quota, admission), in the API server's words."""
    max_surge: str | None = None
    max_unavailable: str | None = None
    revision: int | None = None
    """Of the template that its controller rolls out."""
    template: str | None = None
    """Digest of the template that was asked for last, on trial or not."""
    was_complete: bool = False
    """All groups of that template served once; a Deployment's controller remembers that itself."""
    trial: Trial | None = None
    created: datetime | None = None
    group_size: int = 1
    """Pods of each replica."""
    has_predecessor: bool = False
    """The other kind of workload is still there with the service's earlier pods."""

    @property
    def settled(self) -> bool:
        """The controller has looked at the latest change: until then its status is about an earlier one."""
        return self.observed_generation >= self.generation

    @property
    def two_templates(self) -> bool:
        """Pods of an older template exist: a roll-out is under way."""
        return self.total > self.updated or self.has_predecessor

    @property
    def deadline_exceeded(self) -> bool:
        """The roll-out of the latest change made no progress for `progressDeadlineSeconds`."""
        late = self.progressing is not None and self.progressing.reason == "ProgressDeadlineExceeded"
        return late and self.settled

    @classmethod
    def from_object(cls, body: Body) -> "DeploymentView":
        """Read a Deployment as the API server gives it."""
        meta, spec, status = (body.get(part) or {} for part in ("metadata", "spec", "status"))
        rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
        failure = condition_of(status, "ReplicaFailure") or {}
        replicas, notes = spec.get("replicas"), meta.get("annotations") or {}
        trial = Trial.parse(notes.get(labels.TRIAL))
        return cls(
            name=meta.get("name", ""),
            uid=meta.get("uid", ""),
            generation=meta.get("generation") or 0,
            observed_generation=status.get("observedGeneration") or 0,
            replicas=(1 if replicas is None else replicas) - (trial.extra if trial else 0),
            total=status.get("replicas") or 0,
            updated=status.get("updatedReplicas") or 0,
            ready=status.get("readyReplicas") or 0,
            available=status.get("availableReplicas") or 0,
            progressing=_progress(status),
            replica_failure=failure.get("message", "") if failure.get("status") == "True" else None,
            max_surge=_text(rolling.get("maxSurge")),
            max_unavailable=_text(rolling.get("maxUnavailable")),
            revision=_revision(notes),
            template=notes.get(labels.TEMPLATE),
            trial=trial,
        )

    @classmethod
    def from_group_set(cls, body: Body, leaders: Sequence[str | None]) -> "DeploymentView":
        """Read a LeaderWorkerSet; `leaders` are the templates of its groups' leaders that count: of a template before
        this one those on their way out too, as the group that follows is not there before they are gone.

        Its status does not say which generation it is about, so a roll-out is known by the pods alone: each carries
        the digest of its template.
        """
        meta, spec, status = (body.get(part) or {} for part in ("metadata", "spec", "status"))
        rolling = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
        replicas, notes = spec.get("replicas"), meta.get("annotations") or {}
        template = notes.get(labels.TEMPLATE)
        return cls(
            name=meta.get("name", ""),
            uid=meta.get("uid", ""),
            replicas=1 if replicas is None else replicas,
            total=len(leaders),
            updated=sum(each == template for each in leaders),
            ready=status.get("readyReplicas") or 0,
            available=status.get("readyReplicas") or 0,
            max_surge=_text(rolling.get("maxSurge")),
            max_unavailable=_text(rolling.get("maxUnavailable")),
            template=template,
            was_complete=template is not None and notes.get(labels.COMPLETE) == template,
            created=parse_time(meta.get("creationTimestamp")),
            group_size=(spec.get("leaderWorkerTemplate") or {}).get("size") or 1,
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """A template that a Deployment has or had, as its ReplicaSet keeps it."""

    owner_uid: str
    template_hash: str
    revision: int | None
    """Of the roll-out that brought it last; the controller's latest is in the Deployment's own annotation."""
    template: Mapping[str, Any]
    """Without what the Deployment controller added to it."""

    @classmethod
    def from_object(cls, body: Body) -> "Generation":
        """Read a ReplicaSet as the API server gives it."""
        meta, template = body["metadata"], (body.get("spec") or {}).get("template") or {}
        owners = [owner.get("uid", "") for owner in meta.get("ownerReferences") or () if owner.get("controller")]
        pod_labels = (template.get("metadata") or {}).get("labels") or {}
        own = {name: value for name, value in pod_labels.items() if name != TEMPLATE_HASH}
        plain = {name: value for name, value in (template.get("metadata") or {}).items() if value is not None}
        return cls(
            owner_uid=owners[0] if owners else "",
            template_hash=pod_labels.get(TEMPLATE_HASH, ""),
            revision=_revision(meta.get("annotations") or {}),
            template={**template, "metadata": {**plain, "labels": own}},
        )


def _progress(status: Body) -> Progress | None:
    found = condition_of(status, "Progressing")
    return (
        None if found is None else Progress(found.get("status", ""), found.get("reason", ""), found.get("message", ""))
    )


def _revision(notes: Mapping[str, Any]) -> int | None:
    text = str(notes.get(_REVISION, ""))
    return int(text) if text.isdecimal() else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
