"""A fleet of simulated pods under the controller's own decision: events in the order of their time."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from operator import attrgetter
from statistics import NormalDist

from pagefleet_api.scaling import Mode
from pagefleet_cli.simulation.deciding import Answer, Decider
from pagefleet_cli.simulation.pod import Admitted, Advanced, SimulatedPod
from pagefleet_cli.simulation.values import Balancing, FleetModel, Moment, Refusal, Refused, Run, Trace
from pagefleet_operator.autoscaling import Policy

Draw = Callable[[], float]
"""A number of [0, 1), evenly spread."""

_P95 = NormalDist().inv_cdf(0.95)
_LEAST_SHARE = 1e-6


def play(policy: Policy | int, trace: Trace, model: FleetModel, draw: Draw = lambda: 0.5) -> Run:
    """The whole trace, until its last request has ended.

    policy: what the autoscaler is asked for, or a fixed number of pods. A policy that only recommends is played as if
    its answer counted. draw: chance, for cold starts and random balancing; without it every start takes the median.
    """
    return _Fleet(policy, trace, model, draw).played()


def timeline(policy: Policy | int, trace: Trace, model: FleetModel, draw: Draw = lambda: 0.5) -> tuple[Moment, ...]:
    """The numbers of pods of `play`, each from its moment on."""
    return play(policy, trace, model, draw).timeline


class _Fleet:
    def __init__(self, policy: Policy | int, trace: Trace, model: FleetModel, draw: Draw) -> None:
        self._trace, self._requests, self._model, self._draw = trace, trace.requests, model, draw
        acting = policy if isinstance(policy, int) else replace(policy, mode=Mode.BUILTIN)
        least = acting if isinstance(acting, int) else acting.min_replicas
        self._decider = Decider(acting, trace.began, model.start_p50_s)
        self._pods: list[SimulatedPod] = []
        """All that exist; those that are asked for among them do not drain."""
        self._serving: list[SimulatedPod] = []
        self._events: list[tuple[float, int, int, SimulatedPod]] = []
        self._made = 0
        self._pod_seconds = 0.0
        self._waits_s: list[float] = []
        self._first_tokens_s: list[float | None] = [None] * len(self._requests)
        self._completed = 0
        self._refusals: Counter[Refusal] = Counter()
        self._timeline: list[Moment] = []
        for _ in range(least if model.initial_replicas is None else max(model.initial_replicas, 1)):
            self._create(0.0, 0.0).ready = True
        self._serve()
        self._answer = Answer(len(self._pods), "Start", 0.0)

    def played(self) -> Run:
        """Arrivals, pods' own events and decisions, whichever comes first, until nothing is left of the trace."""
        now_s, arriving, requests = 0.0, 0, self._requests
        aborted = 0
        self._note(0.0)
        while arriving < len(requests) or any(pod.in_flight for pod in self._pods):
            arrival_s = requests[arriving].arrival_s if arriving < len(requests) else math.inf
            event_s = self._next_event_s()
            now_s = min(arrival_s, event_s, self._answer.next_s)
            if now_s == event_s:
                self._advance(now_s)
            elif now_s == arrival_s:
                self._arrive(arriving, now_s)
                arriving += 1
            else:
                aborted += self._cut_off(now_s)
                self._decide(now_s)
        return Run(
            trace=self._trace,
            timeline=tuple(self._timeline),
            queue_waits_s=tuple(self._waits_s),
            first_tokens_s=tuple(self._first_tokens_s),
            completed=self._completed,
            refusals=tuple(self._refused()),
            aborted=aborted,
            pod_seconds=self._pod_seconds + sum(now_s - pod.created_s for pod in self._pods),
            end_s=now_s,
        )

    def _refused(self) -> Iterator[Refused]:
        for why in Refusal:
            if self._refusals[why]:
                yield Refused(why, self._refusals[why], self._model.engine.limit(why))

    def _next_event_s(self) -> float:
        """Of pods; what a later event has made void is thrown away."""
        events = self._events
        while events and events[0][2] != events[0][3].version:
            heappop(events)
        return events[0][0] if events else math.inf

    def _expect(self, pod: SimulatedPod) -> None:
        due_s = pod.due_s()
        if due_s < math.inf:
            heappush(self._events, (due_s, pod.number, pod.version, pod))

    def _arrive(self, number: int, now_s: float) -> None:
        request = self._requests[number]
        if self._model.balancing is Balancing.RANDOM:
            pod = self._serving[int(self._draw() * len(self._serving))]
        else:
            pod = min(self._serving, key=attrgetter("in_flight"))
        why = pod.refusal(request)
        if why is not None:
            self._refusals[why] += 1
            return
        self._admitted(pod.submit(number, now_s))
        self._expect(pod)

    def _advance(self, now_s: float) -> None:
        pod = heappop(self._events)[3]
        was_ready = pod.ready
        happened, admitted = pod.advance(now_s)
        self._admitted(admitted)
        self._heard(pod, happened, now_s)
        if pod.draining_since_s is not None and not pod.in_flight:
            self._remove(pod, now_s)
            return
        self._expect(pod)
        if not was_ready:
            self._serve()
            self._note(now_s)

    def _admitted(self, admitted: list[Admitted]) -> None:
        self._waits_s += [when_s - self._requests[number].arrival_s for number, when_s in admitted]

    def _heard(self, pod: SimulatedPod, happened: Advanced, now_s: float) -> None:
        self._completed += len(happened.finished)
        for number in happened.first_tokens:
            first_s = now_s - self._requests[number].arrival_s
            self._first_tokens_s[number] = first_s
            self._decider.measured(pod.number, first_s)

    def _decide(self, now_s: float) -> None:
        asked = [pod for pod in self._pods if pod.draining_since_s is None]
        busy = len(asked) < len(self._pods) or len(self._serving) < len(asked)
        reason, desired, closely = self._decider.decide(asked, now_s)
        self._resize(asked, desired, now_s)
        interval_s = self._model.sync_busy_s if busy or closely else self._model.sync_calm_s
        self._answer = Answer(desired, reason, now_s + interval_s)
        self._note(now_s)

    def _resize(self, asked: list[SimulatedPod], desired: int, now_s: float) -> None:
        """As the operator: who drains is taken back first; those leave that are not ready, then the idlest, then the
        newest.
        """
        if desired > len(asked):
            draining = [pod for pod in self._pods if pod.draining_since_s is not None]
            back = sorted(draining, key=lambda pod: -pod.in_flight)[: desired - len(asked)]
            for pod in back:
                pod.draining_since_s = None
            for _ in range(desired - len(asked) - len(back)):
                self._create(now_s, now_s + self._start_s())
        surplus = sorted(asked, key=lambda pod: (pod.ready, pod.in_flight, -pod.created_s))
        for pod in surplus[: max(len(asked) - desired, 0)]:
            pod.draining_since_s = now_s
            if not pod.in_flight:
                self._remove(pod, now_s)
        self._serve()

    def _create(self, now_s: float, ready_at_s: float) -> SimulatedPod:
        self._made += 1
        pod = SimulatedPod(self._made, self._model.engine, self._requests, now_s, ready_at_s)
        self._pods.append(pod)
        if ready_at_s > 0:
            self._expect(pod)
        return pod

    def _remove(self, pod: SimulatedPod, now_s: float) -> None:
        pod.version += 1
        self._pods.remove(pod)
        self._pod_seconds += now_s - pod.created_s

    def _cut_off(self, now_s: float) -> int:
        """Requests of drains that took too long."""
        late = [
            pod
            for pod in self._pods
            if pod.draining_since_s is not None and now_s - pod.draining_since_s >= self._model.drain_timeout_s
        ]
        for pod in late:
            self._remove(pod, now_s)
        return sum(pod.in_flight for pod in late)

    def _serve(self) -> None:
        self._serving = [pod for pod in self._pods if pod.ready and pod.draining_since_s is None]

    def _start_s(self) -> float:
        """Log-normal through the two quantiles."""
        p50_s, p95_s = self._model.start_p50_s, max(self._model.start_p95_s, self._model.start_p50_s)
        share = min(max(self._draw(), _LEAST_SHARE), 1 - _LEAST_SHARE)
        return p50_s * (p95_s / p50_s) ** (NormalDist().inv_cdf(share) / _P95) if p50_s else 0.0

    def _note(self, now_s: float) -> None:
        ready, last = len(self._serving), self._timeline[-1] if self._timeline else None
        if last is None or (last.replicas, last.desired) != (ready, self._answer.desired):
            self._timeline.append(Moment(round(now_s, 3), ready, self._answer.desired, self._answer.reason))
