"""Whom the engine has served least is next: one line for each tenant.

Source: the virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024). Differences:
prompt tokens from the prefix cache cost nothing, as nobody computes them; who lost a seat comes before all others, as
it has paid for it; and a tenant that did not wait begins where an equal share of what was served would have brought it,
not with the least served one that waits: else new tenants that never end would keep those waiting who are not new.
"""

from collections import deque
from collections.abc import Iterator, Set
from heapq import heapify, heappop, heappush, nlargest

from pagefleet_engine.scheduler.sequence import Sequence
from pagefleet_engine.scheduler.waiting import MOST_PASSED, ArrivalLine

PROMPT_TOKEN_COST, ANSWER_TOKEN_COST = 1, 2
"""What a token counts that is computed of a prompt, and one that is generated; the paper's choice."""
_FORGET_FROM_TENANTS = 1024
_MOST_REMEMBERED = 4096


class Accounts:
    """What each tenant has been served, in prompt tokens.

    While two tenants both have requests that wait, what they are served in any time differs by at most twice
    PROMPT_TOKEN_COST times the longest prompt and ANSWER_TOKEN_COST times all that the requests which have seats can
    generate (theorem 4.8 there has the memory's tokens for the latter): a tenant gets a seat only while nobody else who
    waits has been served less, and from then on until its next seat its account grows by no more than that.
    """

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._running: list[Sequence] = []
        self._level = 0
        """Nobody who waits has been served less."""
        self._equal_share = 0.0
        """What everybody who was there would have been served with equal shares: the virtual time of fair queues."""
        self._last_seated: str | None = None
        self._seated_cost = 0
        """Of prompts since the latest `settle`."""
        self._forget_from = _FORGET_FROM_TENANTS

    def served(self, tenant: str) -> int:
        """As of the latest `settle`."""
        return self._served.get(tenant, 0)

    def settle(self, waiting: Set[str]) -> None:
        """Count what was generated since the last time."""
        served, cost = self._served, self._seated_cost
        for sequence in self._running:
            tenant, tokens = sequence.request.tenant, len(sequence.token_ids)
            news = ANSWER_TOKEN_COST * (tokens - sequence.paid_tokens)
            served[tenant] += news
            cost += news
            sequence.paid_tokens = tokens
        self._equal_share += cost / len(waiting | {sequence.request.tenant for sequence in self._running})
        self._seated_cost = 0
        self._running = [sequence for sequence in self._running if sequence.live]

    def lift(self, newcomers: list[str], waiting: dict[str, deque[Sequence]]) -> None:
        """Nobody saves up what it did not ask for: who did not wait begins among those who do.

        Where nobody does, that is where the one is who was the last to wait. `waiting` has the newcomers too.
        """
        if not newcomers:
            return
        before = [self.served(tenant) for tenant in waiting.keys() - newcomers]
        if before:
            self._level = min(before)
        elif self._last_seated is not None:
            self._level = max(self._level, self.served(self._last_seated))
        self._equal_share = max(self._equal_share, self._level)
        begin = int(min(self._equal_share, max(before, default=self._level)))
        for tenant in newcomers:
            self._served[tenant] = max(self.served(tenant), begin)
        if len(self._served) >= self._forget_from:
            self._forget(waiting)

    def seat(self, sequence: Sequence, tokens: int) -> None:
        """A request takes its first seat, and `tokens` of its prompt are computed."""
        self._served[sequence.request.tenant] += PROMPT_TOKEN_COST * tokens
        self._seated_cost += PROMPT_TOKEN_COST * tokens
        sequence.paid_tokens = len(sequence.token_ids)
        self._running.append(sequence)
        self._last_seated = sequence.request.tenant

    def _forget(self, waiting: dict[str, deque[Sequence]]) -> None:
        """Those who would be lifted when they come again.

        Where the line never empties, new tenants that never end leave more than are worth their memory: of those who
        are gone, the ones that were served most are remembered, the others are as new.
        """
        here = waiting.keys() | {sequence.request.tenant for sequence in self._running} | {self._last_seated}
        level, served = self._level, self._served
        gone = [tenant for tenant, sum_ in served.items() if sum_ > level and tenant not in here]
        if len(gone) > _MOST_REMEMBERED:
            gone = nlargest(_MOST_REMEMBERED, gone, key=served.__getitem__)
        self._served = {tenant: served[tenant] for tenant in (*gone, *(served.keys() & here))}
        self._forget_from = max(2 * len(self._served), _FORGET_FROM_TENANTS)


class FairLine:
    """By what their tenants have been served, each tenant's in order of arrival."""

    def __init__(self) -> None:
        self.tokens = 0
        self._accounts = Accounts()
        self._returned = ArrivalLine()
        self._queues: dict[str, deque[Sequence]] = {}
        self._newcomers: list[str] = []
        self._joined = self._queued = 0
        self._turn: tuple[deque[Sequence], int] | None = None
        """Queue and place of whose turn it is; None for one who has lost a seat."""

    def __len__(self) -> int:
        return len(self._returned) + self._queued

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._returned
        for queue in self._queues.values():
            yield from queue

    def join(self, sequence: Sequence) -> None:
        self._joined += 1
        self._queued += 1
        sequence.rank = (self._joined, 0)
        tenant = sequence.request.tenant
        if tenant not in self._queues:
            self._queues[tenant] = deque()
            self._newcomers.append(tenant)
        self._queues[tenant].append(sequence)
        self.tokens += len(sequence.token_ids)

    def come_back(self, sequence: Sequence) -> None:
        self._returned.come_back(sequence)
        self.tokens += len(sequence.token_ids)

    def turns(self) -> Iterator[Sequence]:
        for sequence in self._returned.turns():
            self._turn = None
            yield sequence
        if not self._queues:
            return
        accounts = self._accounts
        accounts.settle(self._queues.keys())
        accounts.lift(self._newcomers, self._queues)
        self._newcomers = []
        heap = [(accounts.served(tenant), queue[0].rank, tenant, 0) for tenant, queue in self._queues.items()]
        heapify(heap)
        passed = 0
        while heap and passed < MOST_PASSED:
            _, _, tenant, place = heappop(heap)
            queue = self._queues[tenant]
            if queue[place].awaits_others:
                passed += 1
                place += 1
            else:
                self._turn = queue, place
                yield queue[place]
            if place < len(queue):
                heappush(heap, (accounts.served(tenant), queue[place].rank, tenant, place))

    def leave(self, tokens: int) -> None:
        if self._turn is None:
            self.tokens -= self._returned.tokens
            self._returned.leave(tokens)
            self.tokens += self._returned.tokens
            return
        queue, place = self._turn
        sequence = queue[place]
        del queue[place]
        self._queued -= 1
        if not queue:
            del self._queues[sequence.request.tenant]
        self.tokens -= len(sequence.token_ids)
        self._accounts.seat(sequence, tokens)

    def sweep(self) -> None:
        self._returned.sweep()
        for tenant, queue in list(self._queues.items()):
            self._queues[tenant] = deque(sequence for sequence in queue if sequence.live)
            if not self._queues[tenant]:
                del self._queues[tenant]
        self._newcomers = [tenant for tenant in self._newcomers if tenant in self._queues]
        self._queued = sum(map(len, self._queues.values()))
        self.tokens = sum(len(sequence.token_ids) for sequence in self)

    def forget_flight(self) -> None:
        for sequence in self:
            sequence.forget_flight()
