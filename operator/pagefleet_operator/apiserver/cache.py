"""The watch cache: what the API server last said of every object of ours, kept by `watch`, read by `observe`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pagefleet_api import labels
from pagefleet_operator.facts.observed import Body, ChildKey, Generation, Pod
from pagefleet_operator.kinds import CHILDREN, DEPLOYMENT, GROUP_SET, JOB, KEPT, POD, REPLICA_SET, WORKLOADS
from pagefleet_operator.remembered import Remembered

_REMEMBERED_GONE = 10_000
_OF_JOB = "job/"
"""Before the Job's name, where its pods are found: no object's name has a slash."""
_OF_GROUP = "group/"
"""Before the child name, where the pods of a service's groups are found that are no leaders."""


_READ: Mapping[str, Callable[[Body], Any]] = {POD.name: Pod.from_object, REPLICA_SET.name: Generation.from_object}
"""Kinds of which only a value is kept; they carry their service's label, and names of their own."""


class ServiceKey(NamedTuple):
    """One InferenceService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def series(self) -> tuple[str, str]:
        """The labels `inference_namespace` and `inference_service` of its metrics: the latter is what its pods carry,
        which differs from the name when that is long or has dots."""
        return self.namespace, labels.child_name(self.name)


class _Place(NamedTuple):
    """Children and pods are found by the name that all of a service's children have."""

    namespace: str
    child_name: str


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int | None
    name: str
    place: _Place
    value: Any


class Keys(Protocol):
    """Takes the services to look at; `WorkQueue` is one."""

    def add(self, key: ServiceKey) -> None:
        """Look at once: what is wanted changed."""

    def nudge(self, key: ServiceKey) -> None:
        """Look, but not before a failure's delay is over."""


class WatchCache:
    """Newest known version of each object. Own writes are put here too, so that no pass acts on what it changed."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, _Entry]] = {kind: {} for kind in KEPT}
        self._places: dict[str, dict[_Place, set[str]]] = {kind: {} for kind in KEPT}
        self._gone: dict[str, int | None] = Remembered(_REMEMBERED_GONE)
        self._lacking: dict[tuple[str, str | None], str] = {}

    def lack(self, kind: str, namespace: str | None) -> str | None:
        """Why the API server does not give us this kind there, with the way out; None when it does."""
        return self._lacking.get((kind, namespace)) or self._lacking.get((kind, None))

    def note_lack(self, kind: str, namespace: str | None, words: str | None) -> None:
        """What `lack` is to answer from now on, there or (None) in the whole cluster."""
        self._lacking.pop((kind, namespace), None)
        if words is not None:
            self._lacking[kind, namespace] = words

    def put(self, kind: str, body: Body) -> None:
        """Keep `body` unless a newer version of it is known or the object went away after it."""
        meta = body["metadata"]
        uid, version = meta["uid"], _version(meta)
        known = self._entries[kind].get(uid)
        if uid in self._gone and not _newer(version, self._gone[uid]):
            return
        if known is not None and _newer(known.version, version):
            return
        place = _place(kind, meta)
        if known is not None and known.place != place:
            self._remove(kind, uid)
        value = _READ[kind](body) if kind in _READ else body
        self._entries[kind][uid] = _Entry(version, meta["name"], place, value)
        self._places[kind].setdefault(place, set()).add(uid)

    def drop(self, kind: str, uid: str, last: Body | None = None, *, for_good: bool = True) -> None:
        """The object is gone, or has lost our label; `last` is what the server said of it then.

        An answer to an own write may come later than the news of the end: it must not bring the object back. But one
        that is only out of sight (not `for_good`) may come back as it was.
        """
        known = self._entries[kind].get(uid)
        self._remove(kind, uid)
        if not for_good:
            return
        version = known.version if known else None
        self._gone[uid] = version if last is None else _version(last["metadata"])

    def uids(self, kind: str, namespace: str | None = None) -> set[str]:
        """Uids of all objects of a kind, in one namespace or in all."""
        entries = self._entries[kind].items()
        return {uid for uid, entry in entries if namespace in {None, entry.place.namespace}}

    def version(self, kind: str, uid: str) -> int | None:
        """The resource version of a known object as a number; None when it is not known or not one."""
        entry = self._entries[kind].get(uid)
        return None if entry is None else entry.version

    def has(self, kind: str, meta: Mapping[str, Any]) -> bool:
        """Whether the object with that metadata is known as of its version, or as of a later one."""
        entry, version = self._entries[kind].get(meta["uid"]), _version(meta)
        return entry is not None and None not in {entry.version, version} and not _newer(version, entry.version)

    def generation(self, uid: str) -> int | None:
        """How often the wish of an InferenceService has changed; None when it is not known."""
        entry = self._entries[labels.KIND].get(uid)
        return None if entry is None else entry.value["metadata"].get("generation")

    def services(self, namespace: str | None = None) -> list[ServiceKey]:
        """Every InferenceService, of one namespace or of all."""
        entries = self._entries[labels.KIND].values()
        found = (entry for entry in entries if namespace in {None, entry.place.namespace})
        return [ServiceKey(entry.place.namespace, entry.name) for entry in found]

    def owners(self, kind: str, uid: str) -> tuple[ServiceKey, ...]:
        """The InferenceServices that a known object belongs to: a Job and its pods may belong to several."""
        entry = self._entries[kind].get(uid)
        if entry is None:
            return ()
        job = entry.value if kind == JOB.name else self._job_at(entry.place)
        if job is not None:
            return self._owners_of(job)
        found = self._service_at(entry.place._replace(child_name=entry.place.child_name.removeprefix(_OF_GROUP)))
        return () if found is None else (found,)

    def service(self, key: ServiceKey) -> Body | None:
        """The InferenceService as the API server gave it."""
        for uid in self._at(labels.KIND, key):
            entry = self._entries[labels.KIND][uid]
            if entry.name == key.name:
                return dict(entry.value)
        return None

    def in_groups(self, key: ServiceKey) -> bool:
        """Whether a service asks for groups of pods, or has some."""
        spec = (self.service(key) or {}).get("spec") or {}
        stages = ((spec.get("engine") or {}).get("parallelism") or {}).get("pipeline") or 1
        return stages != 1 or bool(self.workers(key)) or any(pod.group is not None for pod in self.pods(key))

    def services_of(self, namespace: str) -> list[Body]:
        """Every InferenceService of a namespace as the API server gave it."""
        return [entry.value for entry in self._of(labels.KIND, namespace)]

    def jobs(self, namespace: str) -> list[Body]:
        """Every Job of ours in a namespace."""
        return [entry.value for entry in self._of(JOB.name, namespace)]

    def fetch_pods(self, namespace: str, job: str) -> tuple[Pod, ...]:
        """Pods of one of those Jobs."""
        uids = self._places[POD.name].get(_Place(namespace, f"{_OF_JOB}{job}"), set())
        return tuple(self._entries[POD.name][uid].value for uid in uids)

    def children(self, key: ServiceKey) -> Mapping[ChildKey, Body]:
        """Live objects that carry our label and have the name of this service's children."""
        found = ((kind, self._entries[kind][uid]) for kind in CHILDREN for uid in self._at(kind, key))
        return {ChildKey(kind, entry.name): entry.value for kind, entry in found}

    def pods(self, key: ServiceKey) -> tuple[Pod, ...]:
        """The service's pods by name: of groups, their leaders."""
        return self._pods_at(_Place(key.namespace, labels.child_name(key.name)))

    def workers(self, key: ServiceKey) -> tuple[Pod, ...]:
        """The other pods of its groups, by name."""
        return self._pods_at(_Place(key.namespace, f"{_OF_GROUP}{labels.child_name(key.name)}"))

    def _pods_at(self, place: _Place) -> tuple[Pod, ...]:
        found = (self._entries[POD.name][uid].value for uid in self._places[POD.name].get(place, ()))
        return tuple(sorted(found, key=lambda pod: pod.name))

    def generations(self, key: ServiceKey) -> tuple[Generation, ...]:
        """Every template that the service's Deployment has a ReplicaSet of; oldest revision first."""
        deployments = self._at(DEPLOYMENT.name, key)
        found = (self._entries[REPLICA_SET.name][uid].value for uid in self._at(REPLICA_SET.name, key))
        mine = (generation for generation in found if generation.owner_uid in deployments)
        return tuple(sorted(mine, key=lambda generation: generation.revision or 0))

    def workloads(self, namespace: str) -> list[Body]:
        """Everything in a namespace that makes engine pods, whichever operator's it is."""
        return [entry.value for kind in WORKLOADS for entry in self._of(kind, namespace)]

    def engine_pods(self, namespace: str) -> list[Pod]:
        """Every pod in a namespace that may read a model, whichever operator's it is: not those that fetch one."""
        entries = (entry for entry in self._of(POD.name, namespace) if not entry.place.child_name.startswith(_OF_JOB))
        return [entry.value for entry in entries if not entry.value.finished]

    def _of(self, kind: str, namespace: str) -> Iterator[_Entry]:
        return (entry for entry in self._entries[kind].values() if entry.place.namespace == namespace)

    def _at(self, kind: str, key: ServiceKey) -> set[str]:
        return self._places[kind].get(_Place(key.namespace, labels.child_name(key.name)), set())

    def _service_at(self, place: _Place) -> ServiceKey | None:
        for uid in self._places[labels.KIND].get(place, ()):
            return ServiceKey(place.namespace, self._entries[labels.KIND][uid].name)
        return None

    def _job_at(self, place: _Place) -> Body | None:
        """The Job whose pods are at that place."""
        if not place.child_name.startswith(_OF_JOB):
            return None
        uids = self._places[JOB.name].get(_Place(place.namespace, place.child_name.removeprefix(_OF_JOB)), set())
        return next((self._entries[JOB.name][uid].value for uid in uids), None)

    def _owners_of(self, body: Body) -> tuple[ServiceKey, ...]:
        references = body["metadata"].get("ownerReferences") or ()
        found = (self._entries[labels.KIND].get(reference["uid"]) for reference in references)
        return tuple(ServiceKey(entry.place.namespace, entry.name) for entry in found if entry is not None)

    def _remove(self, kind: str, uid: str) -> None:
        entry = self._entries[kind].pop(uid, None)
        if entry is None:
            return
        uids = self._places[kind][entry.place]
        uids.discard(uid)
        if not uids:
            del self._places[kind][entry.place]


def _place(kind: str, meta: Mapping[str, Any]) -> _Place:
    """Where an object belongs; a pod that names no service is kept, as listings have it, and found by none."""
    if kind == labels.KIND:
        return _Place(meta["namespace"], labels.child_name(meta["name"]))
    if kind in _READ:
        given = meta.get("labels") or {}
        of_job = f"{_OF_JOB}{given[labels.FETCH]}" if labels.FETCH in given else ""
        other = f"{_OF_GROUP}{given[labels.GROUP_OF]}" if labels.GROUP_OF in given else of_job
        return _Place(meta["namespace"], given.get(labels.SERVICE, other))
    if kind == GROUP_SET.name:
        return _Place(meta["namespace"], (meta.get("labels") or {}).get(labels.SERVICE, ""))
    return _Place(meta["namespace"], meta["name"])


def _version(meta: Mapping[str, Any]) -> int | None:
    """The resource version as a number, so that two can be compared; None when it is not one.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
    """
    text = str(meta.get("resourceVersion", ""))
    return int(text) if text.isdecimal() else None


def _newer(known: int | None, other: int | None) -> bool:
    return known is not None and other is not None and known > other
