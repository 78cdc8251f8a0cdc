"""How the Deployment is to look after this pass: number, image, strategy, and a template that may be on trial. Pure."""

from dataclasses import replace
from typing import NamedTuple

from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.facts.observed import Body, Now, Observed
from pagefleet_operator.plan.handover import Handover
from pagefleet_operator.plan.replicas import ReplicaPlan
from pagefleet_operator.plan.rollout import rolling_update
from pagefleet_operator.plan.trial import Baseline, Course, Shape, advance, measured_since, shape
from pagefleet_operator.reconciling import workloads


class Images(NamedTuple):
    """What this operator runs where a service names no image."""

    engine: str
    fetch: str


class Rollout(NamedTuple):
    """What to render, and how the trial goes on."""

    choices: render.Choices
    course: Course
    handover: Handover | None = None
    """Where the spec asks for the other kind of workload than is there."""


def choose(
    service: InferenceService,
    observed: Observed,
    wanted: int,
    replicas: ReplicaPlan,
    now: Now,
    *,
    images: Images,
    start: Baseline,
) -> Rollout:
    """What the Deployment should be.

    start: what each pod had measured when a trial's comparison began.
    """
    rules = service.spec.rollout
    live = workloads.live(service, observed.children)
    rolling = rolling_update(rules, observed, now)
    step = workloads.handover(service, observed, wanted, rolling)
    number = replicas.deployment_replicas if observed.grouped == service.spec.in_groups else wanted
    plain = render.Choices(
        replicas=number if step is None else step.successor,
        wanted=wanted,
        image=render.pinned_image(service, live, images.engine),
        fetch_image=render.pinned_fetch_image(service, live, images.fetch),
        max_surge=rolling.max_surge,
        max_unavailable=rolling.max_unavailable,
        mounts_model=render.mounts_model(service, live, can=bool(observed.knowledge.mounts_image)),
    )
    measured = measured_since(start, observed)
    course = advance(rules, render.template_digest(service, plain), wanted, observed, measured, now)
    return Rollout(_on_trial(plain, course, shape(course, rolling, rules), live, observed), course, step)


def _on_trial(
    plain: render.Choices, course: Course, form: Shape, live: Body | None, observed: Observed
) -> render.Choices:
    return replace(
        plain,
        replicas=plain.replicas + form.extra,
        max_surge=form.rolling.max_surge,
        max_unavailable=form.rolling.max_unavailable,
        paused=form.paused,
        min_ready_s=form.min_ready_s,
        trial=None if course.trial is None else course.trial.text(),
        template=None if form.pinned is None else _template(form.pinned, live, observed),
    )


def _template(template_hash: str, live: Body | None, observed: Observed) -> render.Manifest | None:
    """The template that a trial was rolled back to, as its ReplicaSet has it.

    Where somebody deleted that, the Deployment stays as it is: it has that template already, and its controller makes
    the ReplicaSet again.
    """
    found = (each.template for each in observed.generations if each.template_hash == template_hash)
    kept = next(found, None)
    if kept is None and live is not None:
        kept = live["spec"]["template"]
    return None if kept is None else dict(kept)
