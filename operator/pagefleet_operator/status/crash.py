"""What a service says of a pass over it that ended in an error of the operator itself."""

import re

from pagefleet_api.reasons import ConditionType, Reason
from pagefleet_api.status import Status
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.facts.observed import Now
from pagefleet_operator.status.conditions import dated

_WORDS_LIMIT = 300
_HIDDEN = "…"
_SCHEME = r"(?i:bearer|basic)\s+\S+"
_SECRET = re.compile(
    r"\w*(?i:token|secret|passw|key|credential|authorization)\w*['\"]?\s*[=:]\s*"
    rf"(?:{_SCHEME}|'[^']*'|\"[^\"]*\"|\S+)"  # a value with its name
    rf"|{_SCHEME}"
    r"|(?<=://)[^/@\s]+@"  # user and password of an address
    r"|\b(?:hf_|sk-|ghp_|glpat-|AKIA)\w+"
    r"|[A-Za-z0-9+/_=-]{40,}"  # base64, a JWT's parts
)
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")


def crash_words(error: BaseException) -> str:
    """Type and message of an error, for everybody who may read the service: what looks like a secret is left out, and
    so is what differs from one process to the next."""
    lines = str(error).strip().splitlines()
    said = _ADDRESS.sub(_HIDDEN, _SECRET.sub(_HIDDEN, lines[0] if lines else ""))
    words = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return words if len(words) <= _WORDS_LIMIT else words[:_WORDS_LIMIT] + _HIDDEN


def crashed_status(words: str, generation: int, previous: Status, now: Now) -> Status:
    """What runs goes on, so all but the verdict stays as it was; until a pass succeeds.

    `Ready` is told only where nothing was said of it yet.
    """
    message = (
        f"an error of the operator, not of the service: {words}; what runs goes on, changes are tried again; "
        "the operator's log has the trace under pass_crashed"
    )
    found = {ConditionType.STALLED: Verdict(True, Reason.INTERNAL_ERROR, message)}
    known = {condition.type for condition in previous.conditions}
    if ConditionType.READY not in known:
        found = {ConditionType.READY: Verdict(None, Reason.INTERNAL_ERROR, message), **found}
    gone = {*found, ConditionType.RECONCILING}
    kept = (condition for condition in previous.conditions if condition.type not in gone)
    conditions = (*kept, *dated(found, generation, previous.conditions, now))
    return previous.model_copy(update={"observed_generation": generation, "conditions": conditions})
