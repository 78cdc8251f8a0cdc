"""Asks downloads how far they are, while a pass over a service wants to know."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet_api.download import DownloadProgress
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.facts.observed import Pod
from pagefleet_operator.remembered import Remembered

_FIRST_S, _EVERY_S = 10.0, 30.0
"""Until it tells something, and then: each answer that differs is a write for every service that waits for it."""
_REMEMBERED = 1000

Ask = Callable[[Pod], Awaitable[DownloadProgress | None]]
"""How far the download in a pod is; None when it does not tell."""


@dataclass(slots=True)
class _Asked:
    at_s: float
    told: DownloadProgress | None = None
    waiting: set[ServiceKey] = field(default_factory=set)

    def left_s(self, now_s: float) -> float:
        """Until it is to be asked again."""
        return self.at_s + (_FIRST_S if self.told is None else _EVERY_S) - now_s


class Downloads:
    """What running downloads told lately. `look_again(key, delay_s)` asks for a further pass."""

    def __init__(
        self, ask: Ask, look_again: Callable[[ServiceKey, float], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._look_again, self._clock_s = ask, look_again, clock_s
        self._asked: dict[str, _Asked] = Remembered(_REMEMBERED)
        self._tasks: set[asyncio.Task[None]] = set()

    def about(self, key: ServiceKey, pods: Sequence[Pod]) -> Mapping[str, DownloadProgress]:
        """By pod uid. They are asked beside, and what is new brings a pass over `key`."""
        running = [pod for pod in pods if pod.active and pod.running and pod.ip is not None]
        for pod in running:
            self._keep_asking(key, pod)
        found = {pod.uid: asked.told for pod in running if (asked := self._asked.get(pod.uid)) is not None}
        return {uid: told for uid, told in found.items() if told is not None}

    def _keep_asking(self, key: ServiceKey, pod: Pod) -> None:
        known, now_s = self._asked.get(pod.uid), self._clock_s()
        if known is not None and (left_s := known.left_s(now_s)) > 0:
            known.waiting.add(key)
            self._look_again(key, left_s)
            return
        asked = self._asked[pod.uid] = _Asked(now_s, None if known is None else known.told, {key})
        task = asyncio.create_task(self._hear(pod, asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hear(self, pod: Pod, asked: _Asked) -> None:
        told = await self._ask(pod) or asked.told
        news, asked.told = told != asked.told, told
        for key in asked.waiting:
            self._look_again(key, 0 if news else asked.left_s(asked.at_s))
