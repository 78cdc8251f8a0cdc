"""What the user reads: the status of an InferenceService."""

from pagefleet_operator.status.compose import service_status
from pagefleet_operator.status.conditions import Scene
from pagefleet_operator.status.crash import crash_words, crashed_status
from pagefleet_operator.status.invalid import Invalid, counted_status, invalid_status
from pagefleet_operator.status.writing import worth_writing

__all__ = [
    "Invalid",
    "Scene",
    "counted_status",
    "crash_words",
    "crashed_status",
    "invalid_status",
    "service_status",
    "worth_writing",
]
