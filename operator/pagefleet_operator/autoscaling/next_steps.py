"""What would have to change for the next step up and the next one down, and when the number may fall."""

from pagefleet_api.explanation import NextSteps, Threshold
from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling import latency, rates
from pagefleet_operator.autoscaling.overruns import hold
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.proposals import holdings, propose, propose_latency
from pagefleet_operator.autoscaling.readings import read
from pagefleet_operator.autoscaling.schedules import bounds
from pagefleet_operator.autoscaling.values import Fleet, Memory
from pagefleet_operator.facts.observed import Now


def next_steps(policy: Policy, fleet: Fleet, memory: Memory, now: Now) -> NextSteps:
    """From what a decision was made of; `memory` is the one that it left behind."""
    held = _down_held_by(policy, fleet, memory, now)
    return NextSteps(
        up=_up(policy, fleet, memory),
        down=_down(policy, fleet, memory),
        up_held_by=_up_held_by(policy, fleet, memory, now),
        down_held_by=held,
        down_after_seconds=None if held else _down_after_s(policy, memory, now),
    )


def _up(policy: Policy, fleet: Fleet, memory: Memory) -> tuple[Threshold, ...]:
    carrying = policy.carrying(memory.desired)
    grown = 1 + policy.up.tolerance
    metrics = tuple(
        _threshold(metric.type, metric.demand.at_least(), metric.target * carrying * grown)
        for metric in propose(policy, read(fleet, policy), carrying)
    )
    slow = latency.latest(fleet, memory)
    waits = propose_latency(policy, slow, max(fleet.ready, 1), carrying)
    return metrics + tuple(_threshold(each.type, each.demand.known, each.target * grown) for each in waits)


def _down(policy: Policy, fleet: Fleet, memory: Memory) -> tuple[Threshold, ...]:
    """Both must hold: below the target by the tolerance, and little enough for a pod less."""
    carrying, readings = policy.carrying(memory.desired), read(fleet, policy)
    queue = [(each.type, each.demand.at_least(), each.target, carrying) for each in propose(policy, readings, carrying)]
    held = [
        (each.type, each.demand.at_most(each.share), each.share, min(carrying, each.demand.pods + each.demand.missing))
        for each in holdings(policy, readings)
    ]
    rows = [row for row in queue if row[0] is MetricType.WAITING_REQUESTS] + held
    shrunk = 1 - policy.down.tolerance
    return tuple(
        _threshold(kind, demand, share * min(loaded * shrunk, carrying - 1)) for kind, demand, share, loaded in rows
    )


def _up_held_by(policy: Policy, fleet: Fleet, memory: Memory, now: Now) -> tuple[str, ...]:
    found, words = bounds(policy.schedules, now.wall), []
    if memory.desired >= policy.max_replicas:
        words.append(f"maxReplicas is {policy.max_replicas}")
    if found.lowered_by is not None and found.most is not None and memory.desired >= found.most:
        words.append(f"{found.lowered_by.until}: maxReplicas is {found.most}")
    if fleet.unplaced:
        words.append(f"{fleet.unplaced} of {memory.desired} find no place: {fleet.unplaced_words}")
    if fleet.rival is not None:
        words.append(f"{fleet.rival} has a higher priority and finds no place for its pods")
    if rates.most(policy, memory, now.monotonic_s) <= memory.desired:
        words.append("behavior.scaleUp allows no more now")
    return tuple(words)


def _down_held_by(policy: Policy, fleet: Fleet, memory: Memory, now: Now) -> tuple[str, ...]:
    found, words, readings = bounds(policy.schedules, now.wall), [], read(fleet, policy)
    if memory.desired <= policy.min_replicas:
        words.append(f"minReplicas is {policy.min_replicas}")
    if found.raised_by is not None and found.least is not None and memory.desired <= found.least:
        words.append(f"{found.raised_by.until}: minReplicas is {found.least}")
    if fleet.rollout_in_progress:
        words.append("a roll-out is under way")
    if not readings.complete:
        words.append("a metric is missing for the whole service")
    elif (thin := readings.thin(policy)) is not None:
        words.append(thin)
    if (outgrown := hold(memory, policy, readings, now)) is not None:
        words.append(outgrown)
    if _rate_after_s(policy, memory, now) is None:
        words.append("behavior.scaleDown never allows it")
    return tuple(words)


def _down_after_s(policy: Policy, memory: Memory, now: Now) -> float:
    """When the window has forgotten every answer of so many pods, and a rate allows one less."""
    window_s, now_s = policy.down.window_s, now.monotonic_s
    held = [given_s + window_s - now_s for given_s, answer in memory.answers if answer >= memory.desired]
    return max(0.0, _rate_after_s(policy, memory, now) or 0.0, *held)


def _rate_after_s(policy: Policy, memory: Memory, now: Now) -> float | None:
    """Until a rate downwards allows a pod less; None when none ever does."""
    now_s = now.monotonic_s
    ends = sorted(change.when_s + rate.period_s for change in memory.changes for rate in policy.down.rates)
    moments = (now_s, *(end_s for end_s in ends if end_s > now_s))
    allowed = (moment_s for moment_s in moments if rates.least(policy, memory, moment_s) < memory.desired)
    first_s = next(allowed, None)
    return None if first_s is None else first_s - now_s


def _threshold(kind: MetricType, demand: float, limit: float) -> Threshold:
    return Threshold(type=kind, demand=demand, limit=limit)
