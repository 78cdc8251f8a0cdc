"""What the operator sees, as frozen values: raw API objects and engine samples are parsed once, here.

Constructors take objects as the API server gives them and forgive every missing key: a status that a
controller has not written yet is normal, not an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from pagefleet_api import labels
from pagefleet_api.load import Load
from pagefleet_api.reasons import Reason
from pagefleet_api.runtimes import Place
from pagefleet_operator.facts.deployments import TEMPLATE_HASH
from pagefleet_operator.facts.deployments import DeploymentView as DeploymentView
from pagefleet_operator.facts.deployments import Generation as Generation
from pagefleet_operator.facts.deployments import Progress as Progress
from pagefleet_operator.facts.evidence import Evidence as Evidence
from pagefleet_operator.facts.evidence import Room as Room
from pagefleet_operator.facts.evidence import Warned as Warned
from pagefleet_operator.facts.evidence import extended_requests
from pagefleet_operator.facts.knowledge import Knowledge
from pagefleet_operator.facts.latencies import Latencies as Latencies
from pagefleet_operator.facts.mounts import Claims, claims_of
from pagefleet_operator.facts.places import is_foreign, place_of
from pagefleet_operator.facts.problems import Body as Body
from pagefleet_operator.facts.problems import PodProblem as PodProblem
from pagefleet_operator.facts.problems import condition_of, crashed_since, creating_since, pod_problem
from pagefleet_operator.facts.problems import parse_time as parse_time
from pagefleet_operator.facts.starts import Start

LEAVING_COST = -2000
"""Deletion cost of a pod whose drain is over: it goes before those that still drain."""


class Now(NamedTuple):
    """The time of one pass: `wall` (aware, UTC) to compare with API objects, `monotonic_s` with samples."""

    wall: datetime
    monotonic_s: float


class ChildKey(NamedTuple):
    """A child of a service, in the service's namespace."""

    kind: str
    name: str

    @classmethod
    def of(cls, manifest: Body) -> "ChildKey":
        """Of a manifest, or of a live object with its kind."""
        return cls(manifest["kind"], manifest["metadata"]["name"])


def controller_of(body: Body) -> Body | None:
    """The owner reference of an object's controller."""
    references = body["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds, as the drain annotation keeps it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def format_second(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as `metav1.Time` is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Sample:
    """One good answer of a pod about its load. A failed scrape makes no sample: the last good one ages."""

    load: Load
    taken_monotonic_s: float
    restarts: int = 0
    """The pod's `restarts` when it was taken: which of the pod's containers answered."""

    def age_s(self, now: Now) -> float:
        """Seconds since the engine answered."""
        return now.monotonic_s - self.taken_monotonic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One engine pod."""

    name: str
    uid: str
    ip: str | None = None
    created: datetime | None = None
    ready: bool = False
    crashed_since: datetime | None = None
    """Not ready since then, with an engine that ended after it or began anew: what it held is gone."""
    serving: bool = True
    """The Service's label is "true": the pod may get requests as soon as it is ready."""
    drain_started: datetime | None = None
    terminating: bool = False
    finished: bool = False
    """Phase Failed or Succeeded (evicted, for example): its ReplicaSet does not count it any more."""
    started: bool = False
    """The engine's container has run at least once."""
    running: bool = False
    """It runs now: only then does the pod hold requests."""
    template_hash: str | None = None
    """Which template it is made of: the Deployment controller's word, or of groups the digest of ours."""
    group: int | None = None
    """The place of its group in a LeaderWorkerSet; None for a pod of a Deployment."""
    deletion_cost: int | None = None
    restarts: int = 0
    """Of the engine's container: with each, what it held is gone."""
    extended: Mapping[str, int] = field(default_factory=dict)
    """What it asks of its node beside CPU, memory and storage, GPUs for example."""
    node: str | None = None
    creating: datetime | None = None
    """Since when a node has it while none of its containers runs yet."""
    problem: PodProblem | None = None
    start: Start = field(default_factory=Start)
    claims: Claims = field(default_factory=dict)
    foreign: bool = False
    """Its engine is not ours: it knows no drain, and tells its load in its own words."""
    place: Place | None = None
    """Where a foreign engine tells its load; None when it tells none."""

    @property
    def active(self) -> bool:
        """Its ReplicaSet counts it."""
        return not (self.terminating or self.finished)

    @property
    def lost(self) -> bool:
        """Its node does not answer: what runs there cannot be known."""
        return self.problem is not None and self.problem.reason is Reason.NODE_LOST

    @property
    def tells(self) -> bool:
        """Its engine says somewhere what it holds."""
        return self.place is not None or not self.foreign

    @property
    def leaving(self) -> bool:
        """Out of the Service with nothing left to wait for: its ReplicaSet may take it."""
        return not self.serving and self.deletion_cost is not None and self.deletion_cost <= LEAVING_COST

    @property
    def draining(self) -> bool:
        """Out of the Service; its last answers may still run."""
        return not self.serving and not self.leaving

    @classmethod
    def from_object(cls, body: Body) -> "Pod":
        """Read a pod as the API server gives it."""
        meta, spec, status = (body.get(part) or {} for part in ("metadata", "spec", "status"))
        pod_labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
        container = _engine_container(status)
        ready = (condition_of(status, "Ready") or {}).get("status") == "True"
        restarts = int(container.get("restartCount") or 0)
        state = container.get("state") or {}
        states = {**(container.get("lastState") or {}), **state}
        return cls(
            name=meta.get("name", ""),
            uid=meta.get("uid", ""),
            ip=status.get("podIP"),
            created=parse_time(meta.get("creationTimestamp")),
            ready=ready,
            crashed_since=crashed_since(status, container),
            serving=pod_labels.get(labels.SERVING) == labels.SERVING_TRUE,
            drain_started=parse_time(notes.get(labels.DRAIN_STARTED)),
            terminating=meta.get("deletionTimestamp") is not None,
            finished=status.get("phase") in {"Failed", "Succeeded"},
            started=ready or restarts > 0 or "running" in states or "terminated" in states,
            running=ready or "running" in state,
            template_hash=pod_labels.get(TEMPLATE_HASH) or notes.get(labels.TEMPLATE),
            group=_integer(pod_labels.get(labels.GROUP_INDEX)),
            deletion_cost=_integer(notes.get(labels.DELETION_COST)),
            restarts=restarts,
            extended=extended_requests(spec),
            node=spec.get("nodeName"),
            creating=creating_since(status, container),
            start=Start.of(meta, status, container),
            problem=None if ready else pod_problem(spec, status, container),
            claims=claims_of(spec),
            foreign=is_foreign(pod_labels),
            place=place_of(pod_labels, notes),
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """All that one pass over one service sees. Build it from caches that include the operator's own
    writes: a pass that does not see the label it flipped a moment ago may choose another pod.
    """

    deployment: DeploymentView | None = None
    """The workload that acts: the one that the spec asks for, or until that is made the one before it."""
    pods: tuple[Pod, ...] = ()
    """One a replica: of groups, their leaders."""
    samples: Mapping[str, Sample] = field(default_factory=dict)
    """Latest good sample by pod uid; read it with `sample`."""
    latencies: Mapping[str, Latencies] = field(default_factory=dict)
    """Latest by pod uid, while somebody asks for them; read it with `measured`."""
    generations: tuple[Generation, ...] = ()
    """Templates that the Deployment has and had."""
    children: Mapping[ChildKey, Body] = field(default_factory=dict)
    """Live objects that have a child's name or this service as controller, raw."""
    evidence: Evidence = field(default_factory=Evidence)
    """What was found out about pods in trouble."""
    knowledge: Knowledge = field(default_factory=Knowledge)
    """What is known of the model and the GPUs before a pod tells."""
    grouped: bool = False
    """That workload is a LeaderWorkerSet: its replicas are groups of pods. Without any, what the spec asks for."""
    workers: tuple[Pod, ...] = ()
    """The pods of groups that are no leaders."""

    @property
    def room(self) -> Room | None:
        """How much of what the pods wait for is free on the nodes; None when it is not known."""
        return self.evidence.room

    @property
    def two_templates(self) -> bool:
        """A roll-out is under way, as far as the Deployment's controller knows."""
        return self.deployment is not None and self.deployment.two_templates

    @property
    def rollout_in_progress(self) -> bool:
        """A roll-out is under way, or may be: the controller has not looked at the latest change yet."""
        return self.two_templates or not self.settled

    @property
    def settled(self) -> bool:
        """The Deployment's controller has looked at the latest change, if there is a Deployment."""
        return self.deployment is None or self.deployment.settled

    @property
    def latest(self) -> Generation | None:
        """The generation that is rolled out; None until the Deployment's controller has taken the latest change up,
        and while its ReplicaSet is not known here.
        """
        live = self.deployment
        if live is None or not live.settled or live.revision is None:
            return None
        return next((each for each in self.generations if each.revision == live.revision), None)

    def replica(self, pod: Pod) -> tuple[Pod, ...]:
        """All pods of a replica that has this one: of a group its leader, and the others behind it."""
        if pod.group is None:
            return (pod,)
        return (pod, *(worker for worker in self.workers if worker.active and worker.group == pod.group))

    def cut_off(self, pod: Pod) -> bool:
        """Whether an engine behind this leader has run and does no more, or its node is lost.

        The leader's engine, which may not have noticed, can answer nothing. Whether the pod is ready is the word of
        other containers in it: the engine there has no probe.
        """
        return any(other.started and (not other.running or other.lost) for other in self.replica(pod)[1:])

    def own(self, pod: Pod) -> bool:
        """Whether `deployment` has made it, and not the workload before or after that one."""
        return (pod.group is not None) == self.grouped

    def of_generation(self, template_hash: str) -> list[Pod]:
        """Its pods that are not on their way out."""
        return [pod for pod in self.pods if pod.active and pod.template_hash == template_hash]

    @property
    def silent(self) -> bool:
        """A ready pod has not said yet what it holds, and will."""
        return any(pod.ready and pod.tells and self.sample(pod) is None for pod in self.pods)

    def sample(self, pod: Pod) -> Sample | None:
        """The pod's latest good sample, however old; None when it is of a container that runs no more."""
        sample = self.samples.get(pod.uid)
        return sample if sample is not None and pod.running and sample.restarts == pod.restarts else None

    def measured(self, pod: Pod) -> Latencies | None:
        """What the pod's container has measured so far; None when that is not known."""
        found = self.latencies.get(pod.uid)
        return found if found is not None and pod.running and found.restarts == pod.restarts else None


_TOLD_OF = (labels.CONTAINER, labels.FETCH_CONTAINER)


def _engine_container(status: Body) -> Body:
    for container in status.get("containerStatuses") or ():
        if container.get("name") in _TOLD_OF:
            return dict(container)
    return {}


def _integer(text: object) -> int | None:
    try:
        return int(str(text))
    except ValueError:
        return None
