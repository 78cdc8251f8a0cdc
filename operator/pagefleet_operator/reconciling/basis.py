"""What pods are made from in this pass: their spec, or their last roll-out while something is missing. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.supplies import Lack, Stays, Supply, Write


@dataclass(frozen=True, slots=True)
class Basis:
    """What to render, what is missing for it, and the writes that bring that on.

    service: as it is, or with the pods of its last roll-out.
    lacks: the ones that decide first.
    no_pods: none is wanted, as nothing could serve.
    untouched: what is live stays as it is: what it was made of is not known.
    cached: the condition `ModelCached`; None where no model is cached.
    """

    service: InferenceService
    lacks: tuple[Lack, ...] = ()
    no_pods: bool = False
    untouched: bool = False
    cached: Verdict | None = None
    writes: tuple[Write, ...] = ()

    def pods(self, number: int) -> int:
        """How many of so many pods there may be."""
        return 0 if self.no_pods else number


def made_from(service: InferenceService, live: Body | None, supplies: Sequence[Supply]) -> Basis:
    """What the pods are made from, with these supplies; `live` is the Deployment that is there."""
    lacks = tuple(supply.lack for supply in supplies if supply.lack is not None)
    stays = {lack.stays for lack in lacks}
    before, untouched = None, False
    if Stays.ALL in stays:
        before = render.last_rolled_out(service, live)
        untouched = before is None
    elif stays & {Stays.MODEL, Stays.PLACE} and not has_no_pods(live):
        before = render.with_earlier_model(service, live, or_place=Stays.PLACE in stays)
    return Basis(
        before or service,
        tuple(sorted(lacks, key=lambda lack: not lack.urgent)),
        no_pods=bool(stays - {Stays.ALL}) and has_no_pods(live),
        untouched=untouched,
        cached=next((supply.cached for supply in supplies if supply.cached is not None), None),
        writes=tuple(write for supply in supplies for write in supply.writes),
    )


def has_no_pods(live: Body | None) -> bool:
    """Whether a Deployment asks for no pod, or is not there."""
    return live is None or not (live.get("spec") or {}).get("replicas")
