"""Services to explain, each with its text in a file: `python -m tests.pagefleet_cli.explaining.scenes` writes them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pagefleet_api.labels import group_set_name
from pagefleet_cli.explaining.access import Refused
from pagefleet_cli.explaining.asking import Place, Told, ask
from pagefleet_cli.explaining.text import as_text

FOLDER = Path(__file__).parent
WALL = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)
PLACE = Place("team", "chat")
SERVICE = "/apis/pagefleet.io/v1alpha1/namespaces/team/inferenceservices/chat"
DEPLOYMENT = "/apis/apps/v1/namespaces/team/deployments/chat"
GROUPS = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/team/leaderworkersets/{group_set_name('chat')}"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/pagefleet-system/leases/pagefleet-operator"
DECISIONS = "/api/v1/namespaces/pagefleet-system/pods/operator-1:8080/proxy/decisions?namespace=team&name=chat"

HELD = {
    "time": "2026-01-01T12:00:04Z",
    "before": 4,
    "desired": 4,
    "reason": "Stabilized",
    "message": "the highest answer of the last 300 s",
    "podsSeen": 3,
    "podsMissing": 1,
    "readings": [
        {"type": "WaitingRequests", "value": "2", "target": "4", "proposal": 1},
        {"type": "KVCacheUsage", "target": "75 %"},
    ],
    "clamps": ["Stabilized: 2 → 4, the highest answer of the last 300 s"],
}
RAISED = {
    **HELD,
    "time": "2026-01-01T11:59:00Z",
    "before": 1,
    "reason": "WaitingRequests",
    "message": "WaitingRequests asks for 4: 14 over all pods, target 4 a pod",
    "clamps": [],
}
NEXT = {
    "up": [
        {"type": "WaitingRequests", "demand": 2, "limit": 17.6},
        {"type": "KVCacheUsage", "demand": 0.61, "limit": 3.3},
        {"type": "TimeToFirstToken", "demand": 0.2, "limit": 0.55},
    ],
    "down": [{"type": "InFlightRequests", "demand": 12, "limit": 21.6}],
    "upHeldBy": ["maxReplicas is 4"],
    "downHeldBy": [],
    "downAfterSeconds": 236.4,
}
STATUS = {
    "replicas": 4,
    "readyReplicas": 3,
    "autoscaling": {"desiredReplicas": 4, "lastDecision": HELD, "history": [RAISED]},
    "conditions": [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": words,
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        }
        for kind, status, reason, words in (
            ("Ready", "True", "Serving", "3 of 4 pods serve"),
            (
                "AbleToScale",
                "True",
                "Stabilized",
                "an answer within the stabilisation window is calmer than the latest",
            ),
        )
    ],
}
CLUSTER: Mapping[str, Any] = {
    SERVICE: {"spec": {"autoscaling": {"maxReplicas": 4}}, "status": STATUS},
    DEPLOYMENT: {"metadata": {"annotations": {"pagefleet.io/operator": "pagefleet-system/pagefleet-operator"}}},
    LEASE: {"spec": {"holderIdentity": "operator-1"}},
    DECISIONS: {"namespace": "team", "name": "chat", "decisions": [RAISED, HELD], "nextSteps": NEXT},
}


class Answers(dict[str, Any]):
    """A cluster of these answers; of what it has not, there is a 404."""

    def get(self, path: str, _: Any = None) -> Any:
        """As `Reader`."""
        if path not in self:
            raise Refused(404, f"{path.rpartition('/')[2]} is not found")
        return self[path]


def told(**changed: Any) -> Told:
    """Of the cluster with other answers by the names above; None takes one away."""
    answers = {**CLUSTER, **{globals()[name]: answer for name, answer in changed.items()}}
    return ask(Answers({path: answer for path, answer in answers.items() if answer is not None}), PLACE, None)


def scenes() -> dict[str, Told]:
    """By the name of their file."""
    soon = {**NEXT, "downAfterSeconds": 0, "upHeldBy": []}
    held = {**NEXT, "downAfterSeconds": None, "downHeldBy": ["minReplicas is 4"]}
    return {
        "operator": told(),
        "at-once": told(DECISIONS={"namespace": "team", "name": "chat", "decisions": [HELD], "nextSteps": soon}),
        "held": told(DECISIONS={"namespace": "team", "name": "chat", "decisions": [], "nextSteps": held}),
        "status": told(LEASE=None),
        "fixed": told(SERVICE={"spec": {"replicas": 2}, "status": {"readyReplicas": 2}}, DECISIONS=None),
        "external": told(SERVICE={"spec": {"replicas": 3, "autoscaling": {"mode": "External"}}}, DECISIONS=None),
        "undecided": told(SERVICE={"spec": {"autoscaling": {}}}, DEPLOYMENT=None),
    }


def main() -> None:
    """Write the files."""
    for name, scene in scenes().items():
        (FOLDER / f"{name}.txt").write_text(f"{as_text(scene, WALL)}\n")


if __name__ == "__main__":
    main()
