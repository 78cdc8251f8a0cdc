"""What is known of a service's number: from the operator that decides it, else from the service's status."""

from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from pagefleet_api import labels
from pagefleet_api.explanation import Explanation
from pagefleet_api.scaling import Mode
from pagefleet_api.status import Decision, Status
from pagefleet_cli.errors import FactsMissing, InputWrong
from pagefleet_cli.explaining.access import Reader, Refused

OPERATOR_PORT = 8080
_NAMES = ("infs", "inferenceservice", "inferenceservices", f"inferenceservices.{labels.GROUP}")


class Place(NamedTuple):
    """A service's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Told(NamedTuple):
    """All that is known."""

    place: Place
    status: Status
    replicas: int
    """spec.replicas: the number where nothing scales it."""
    mode: str | None
    """spec.autoscaling.mode; None without autoscaling."""
    explanation: Explanation | None
    """Of the operator; None where it could not be asked."""
    source: str
    """Who told it, and why not the operator."""

    @property
    def decision(self) -> Decision | None:
        """The latest one that is known."""
        if self.explanation is not None and self.explanation.decisions:
            return self.explanation.decisions[-1]
        return None if self.status.autoscaling is None else self.status.autoscaling.last_decision


def service_name(argument: str) -> str:
    """NAME of `infs/NAME` or `NAME`. Raises InputWrong."""
    kind, slash, name = argument.rpartition("/")
    if not name or (slash and kind.lower() not in _NAMES):
        raise InputWrong(f"{argument!r} is no InferenceService; write infs/NAME")
    return name


def ask(api: Reader, place: Place, operator: Reader | None) -> Told:
    """`operator`: asked directly where given, else the one that the service's workload names, through the API server.

    Raises InputWrong when there is no such service, FactsMissing when the API server gives no answer.
    """
    body = _service(api, place)
    try:
        status = Status.model_validate(body.get("status") or {})
    except ValidationError:
        status = Status()
    spec = body.get("spec") or {}
    explanation, source = _from_operator(api, place, operator)
    scaling = spec.get("autoscaling")
    mode = None if scaling is None else str(scaling.get("mode", Mode.BUILTIN))
    return Told(place, status, int(spec.get("replicas", 1)), mode, explanation, source)


def _service(api: Reader, place: Place) -> Any:
    path = f"/apis/{labels.API_VERSION}/namespaces/{quote(place.namespace)}/inferenceservices/{quote(place.name)}"
    try:
        return api.get(path)
    except Refused as refused:
        if refused.status == 404:
            words = f"there is no InferenceService {place}; kubectl get infs -A lists all"
            raise InputWrong(f"{words} ({refused})") from refused
        raise FactsMissing(f"InferenceService {place}: {refused}") from refused


def _from_operator(api: Reader, place: Place, operator: Reader | None) -> tuple[Explanation | None, str]:
    try:
        where, reader, prefix = ("the operator", operator, "") if operator else _leader(api, place)
        found = reader.get(f"{prefix}/decisions?{urlencode(place._asdict())}")
        return Explanation.model_validate(found), f"told by {where}"
    except Refused as refused:
        return None, f"told by its status, as the operator could not be asked: {refused}"
    except ValidationError:
        return None, "told by its status, as the operator is of another version"


def _leader(api: Reader, place: Place) -> tuple[str, Reader, str]:
    """The operator's pod that acts, and the path of the API server's proxy to it."""
    kind, workload = _workload(api, place)
    namespace, _, lease = _note(workload).partition("/")
    if not lease:
        raise Refused(0, f"its {kind} does not name it; --operator-url asks one directly")
    found = api.get(f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases/{quote(lease)}")
    pod = str((found.get("spec") or {}).get("holderIdentity") or "")
    if not pod:
        raise Refused(0, f"nobody holds the Lease {namespace}/{lease}")
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}:{OPERATOR_PORT}/proxy"
    return f"the operator's pod {namespace}/{pod}", api, path


def _workload(api: Reader, place: Place) -> tuple[str, Any]:
    """What the service's pods are made by: a Deployment, or of groups a LeaderWorkerSet."""
    name, groups = quote(labels.child_name(place.name)), quote(labels.group_set_name(place.name))
    namespace = f"namespaces/{quote(place.namespace)}"
    try:
        return "Deployment", api.get(f"/apis/apps/v1/{namespace}/deployments/{name}")
    except Refused as refused:
        try:
            path = f"/apis/leaderworkerset.x-k8s.io/v1/{namespace}/leaderworkersets/{groups}"
            return "LeaderWorkerSet", api.get(path)
        except Refused:
            raise refused from None


def _note(workload: Any) -> str:
    notes = (workload.get("metadata") or {}).get("annotations") or {}
    return str(notes.get(labels.OPERATOR, ""))
