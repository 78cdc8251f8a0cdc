"""A template on trial, as an annotation of the Deployment keeps it: an operator that starts anew goes on from there."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.problems import parse_time


class Phase(StrEnum):
    """How far a trial is. One that was passed leaves no trace."""

    STARTING = "Starting"
    MEASURING = "Measuring"
    ROLLED_BACK = "RolledBack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A change of the pods that must prove itself beside the generation before it."""

    phase: Phase
    since: datetime
    """When the phase began."""
    stable: str
    """`pod-template-hash` of the generation before it."""
    pods: int
    """Of the new generation, while it is on trial."""
    replaces: bool = False
    """They take the place of older pods, as the cluster has no room for them beside those."""
    reason: Reason | None = None
    """Why it was rolled back."""
    words: str = ""

    @property
    def under_way(self) -> bool:
        """Not decided yet."""
        return self.phase is not Phase.ROLLED_BACK

    @property
    def extra(self) -> int:
        """Pods that the Deployment counts beyond wanted and draining ones.

        Only while it is paused: a number that goes up together with the template would first be filled with pods of
        the old one.
        """
        return self.pods if self.phase is Phase.MEASURING and not self.replaces else 0

    def text(self) -> str:
        """For the annotation."""
        parts = {
            "phase": self.phase.value,
            "since": self.since.astimezone(UTC).isoformat(),
            "stable": self.stable,
            "pods": self.pods,
            "replaces": self.replaces,
            "reason": self.reason,
            "words": self.words,
        }
        return json.dumps(parts)

    @classmethod
    def parse(cls, text: str | None) -> "Trial | None":
        """Reverse of `text`; None without one, or for one that no operator of ours wrote."""
        try:
            parts = json.loads(text or "null")
            since = parse_time(parts["since"])
            return (
                None
                if since is None
                else cls(
                    phase=Phase(parts["phase"]),
                    since=since,
                    stable=str(parts["stable"]),
                    pods=int(parts["pods"]),
                    replaces=bool(parts["replaces"]),
                    reason=parts["reason"] and Reason(parts["reason"]),
                    words=str(parts["words"]),
                )
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
