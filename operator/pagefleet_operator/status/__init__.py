"""What the user reads: the status of an InferenceService."""

from pagefleet_operator.status.compose import invalid_status, service_status
from pagefleet_operator.status.writing import worth_writing

__all__ = ["invalid_status", "service_status", "worth_writing"]
