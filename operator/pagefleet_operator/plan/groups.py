"""Which groups of a LeaderWorkerSet leave and come back.

It takes the highest places first, whoever is busy there (a StatefulSet's rule), so the choice is not ours: places from
the wanted number on leave, the others stay. Its own surge groups, beyond its number, are its own business. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from pagefleet_operator.facts.observed import Observed, Pod


def to_undrain(wanted: int, out: Iterable[Pod], cut_off: Callable[[Pod], bool]) -> list[Pod]:
    """Leaders to take back: those whose place is wanted again, and whose group is whole."""
    return sorted((pod for pod in out if _place(pod) < wanted and not cut_off(pod)), key=_place)


def to_cut_off(wanted: int, serving: Iterable[Pod], cut_off: Callable[[Pod], bool]) -> list[Pod]:
    """Leaders that are to get no requests until their group is whole again: their places stay wanted."""
    return [pod for pod in serving if _place(pod) < wanted and cut_off(pod)]


def to_drain(wanted: int, replicas: int, serving: Sequence[Pod], able: Callable[[Pod], bool]) -> list[Pod]:
    """Leaders that are to leave, the highest first; one that serves stays for as long as too few below it do."""
    spare = sum(able(pod) for pod in serving) - wanted
    leaving = []
    for pod in sorted(serving, key=_place, reverse=True):
        if not wanted <= _place(pod) < replicas:
            continue
        if able(pod) and spare <= 0:
            break
        spare -= able(pod)
        leaving.append(pod)
    return leaving


def number(wanted: int, replicas: int, staying: Iterable[Pod]) -> int:
    """The set's number that takes none of `staying`: leaders that still serve or drain."""
    return max([wanted, *(_place(pod) + 1 for pod in staying if _place(pod) < replicas)])


def lacking(observed: Observed) -> dict[str, datetime | None]:
    """The StatefulSets of which a pod is missing, the leaders' own first, with when each was made.

    Source: LWS names that of a group's other pods as its leader, who owns it.
    """
    live = observed.deployment
    if live is None or not observed.grouped:
        return {}
    leaders = {_place(pod): pod for pod in observed.pods if pod.active and observed.own(pod)}
    found = {} if all(place in leaders for place in range(live.replicas)) else {live.name: live.created}
    short = (pod for _, pod in sorted(leaders.items()) if len(observed.replica(pod)) < live.group_size)
    return {**found, **{pod.name: pod.created for pod in short}}


def _place(pod: Pod) -> int:
    return -1 if pod.group is None else pod.group
