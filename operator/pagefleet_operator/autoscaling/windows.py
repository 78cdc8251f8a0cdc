"""Stabilisation as HorizontalPodAutoscaler v2 does it.

Source: `stabilizeRecommendationWithBehaviors` in kubernetes/pkg/controller/podautoscaler/horizontal.go.
"""

from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.values import Memory

HELD_BACK_S = 60.0
"""So long it is said that an answer was held back: answers that swing with each sample must not make the
reasons swing with them, as each change of a reason is a write."""


def stabilise(current: int, answer: int, memory: Memory, policy: Policy, now_s: float) -> int:
    """`answer` held back by the answers in the windows: never above the least of the up window, never
    below the greatest of the down window, and never past `current` because of it.
    """
    up = min([answer, *_since(memory, now_s - policy.up.window_s)])
    down = max([answer, *_since(memory, now_s - policy.down.window_s)])
    return min(max(current, up), down)


def remember(memory: Memory, answer: int, policy: Policy, now_s: float) -> tuple[tuple[float, int], ...]:
    """The answers to keep: as long as the longer window, a repeat as one entry at its latest time."""
    horizon = now_s - max(policy.up.window_s, policy.down.window_s)
    kept = [entry for entry in memory.answers if entry[0] > horizon]
    if kept and kept[-1][1] == answer:
        kept.pop()
    return (*kept, (now_s, answer))


def held_back_s(memory: Memory, answer: int, calm: int, desired: int, now_s: float) -> float | None:
    """When an answer was last held back, as `Memory` keeps it."""
    if answer != calm:
        return now_s
    return memory.held_back_s if desired == memory.desired else None


def lately(moment_s: float | None, now_s: float) -> bool:
    """Whether an answer was held back within the last minute."""
    return moment_s is not None and now_s - moment_s < HELD_BACK_S


def _since(memory: Memory, cutoff_s: float) -> list[int]:
    return [answer for given_s, answer in memory.answers if given_s > cutoff_s]
