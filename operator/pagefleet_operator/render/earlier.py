"""What pods were made from at their last roll-out, as their workload keeps it."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pagefleet_api.service import InferenceService, Spec
from pagefleet_operator.plan.node_placing import placing
from pagefleet_operator.render.manifests import PODS, PODS_SPEC


def last_rolled_out(service: InferenceService, live: Mapping[str, Any] | None) -> InferenceService | None:
    """The service with the pods of its live Deployment; None when that does not tell."""
    text = (((live or {}).get("metadata") or {}).get("annotations") or {}).get(PODS_SPEC, "")
    try:
        before = Spec.model_validate_json(text)
    except ValidationError:
        return None
    pods = {name: getattr(before, name) for name in PODS}
    return service.model_copy(update={"spec": service.spec.model_copy(update=pods)})


def with_earlier_model(
    service: InferenceService, live: Mapping[str, Any] | None, *, or_place: bool = False
) -> InferenceService | None:
    """As `last_rolled_out`, and None too when those pods have the service's model.

    or_place: and may go to the nodes to which the service's pods may go.
    """
    before = last_rolled_out(service, live)
    if before is None or before.spec.model != service.spec.model:
        return before
    return before if or_place and placing(before) != placing(service) else None
