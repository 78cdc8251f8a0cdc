"""What a service's pods are made by: a Deployment, or a LeaderWorkerSet where a replica is a group of pods. Pure.

Everything else takes either for granted; where the spec asks for the other one, the pods of the earlier one go as
those of its successor come, as the pods of an earlier template do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.observed import Body, ChildKey, DeploymentView, Observed, Pod, controller_of
from pagefleet_operator.kinds import DEPLOYMENT, GROUP_SET, WORKLOADS
from pagefleet_operator.plan.convergence import Action, Resize, without_removals
from pagefleet_operator.plan.handover import Handover, hand_over
from pagefleet_operator.plan.rollout import RollingUpdate


def asked_for(service: InferenceService) -> ChildKey:
    """The workload of that service."""
    if service.spec.in_groups:
        return ChildKey(GROUP_SET.name, labels.group_set_name(service.name))
    return ChildKey(DEPLOYMENT.name, service.child_name)


def live(service: InferenceService, children: Mapping[ChildKey, Body]) -> Body | None:
    """The one that is there: that which the spec asks for, else the one before it."""
    return children.get(asked_for(service)) or next(_others(service, children), None)


def _others(service: InferenceService, children: Mapping[ChildKey, Body]) -> Iterator[Body]:
    """The service's workloads that its spec does not ask for. Others' do not count: names and labels can be copied."""
    for child, body in children.items():
        if child.kind not in WORKLOADS or child == asked_for(service):
            continue
        if (controller_of(body) or {}).get("uid") == service.uid:
            yield body


def grouped(service: InferenceService, children: Mapping[ChildKey, Body]) -> bool:
    """Whether the replicas of what is there are groups; with nothing there, as the spec asks."""
    body = live(service, children)
    return service.spec.in_groups if body is None else body["kind"] == GROUP_SET.name


def view(service: InferenceService, children: Mapping[ChildKey, Body], pods: Iterable[Pod]) -> DeploymentView | None:
    """What is there: what the spec asks for, or before that is made the one before it. None without either."""
    body = live(service, children)
    if body is None:
        return None
    if grouped(service, children):
        latest = (body["metadata"].get("annotations") or {}).get(labels.TEMPLATE)
        leaders = [pod for pod in pods if pod.group is not None and (pod.active or pod.template_hash != latest)]
        found = DeploymentView.from_group_set(body, [pod.template_hash for pod in leaders])
    else:
        found = DeploymentView.from_object(body)
    others = (other for other in _others(service, children) if other is not body)
    return replace(found, has_predecessor=True) if any(_stays(other) for other in others) else found


def _stays(body: Body) -> bool:
    return body["metadata"].get("deletionTimestamp") is None


def succeeds(service: InferenceService, children: Mapping[ChildKey, Body]) -> bool:
    """Whether a workload of another kind is to give way to the one that the spec asks for."""
    return _predecessor(service, children) is not None


def handover(service: InferenceService, observed: Observed, wanted: int, rolling: RollingUpdate) -> Handover | None:
    """The next step from the workload that is there to the one that the spec asks for; None where no other is there."""
    before = _predecessor(service, observed.children)
    if before is None:
        return None
    made = observed.children.get(asked_for(service))
    return hand_over(service, observed, wanted, rolling, before=_replicas(before), after=_replicas(made))


def keeping_predecessor(
    actions: Sequence[Action], service: InferenceService, observed: Observed, step: Handover | None
) -> tuple[Action, ...]:
    """The same with what is left of the earlier workload in place of its removal, while any is."""
    before = _predecessor(service, observed.children)
    if before is None or step is None or step.predecessor == 0:
        return tuple(actions)
    kept = without_removals(actions)
    if step.predecessor == _replicas(before):
        return kept
    return (*kept, Resize(ChildKey.of(before), before, step.predecessor))


def _predecessor(service: InferenceService, children: Mapping[ChildKey, Body]) -> Body | None:
    return next((body for body in _others(service, children) if _stays(body)), None)


def _replicas(body: Body | None) -> int:
    return 0 if body is None else int((body.get("spec") or {}).get("replicas", 1))
