"""Stabilisation as HorizontalPodAutoscaler v2 does it.

Source: `stabilizeRecommendationWithBehaviors` in kubernetes/pkg/controller/podautoscaler/horizontal.go.
"""

from pagefleet_operator.autoscaling.values import Memory, Policy


def stabilise(current: int, answer: int, memory: Memory, policy: Policy, now_s: float) -> int:
    """`answer` held back by the answers in the windows: never above the least of the up window, never
    below the greatest of the down window, and never past `current` because of it.
    """
    up = min([answer, *_since(memory, now_s - policy.up_window_s)])
    down = max([answer, *_since(memory, now_s - policy.down_window_s)])
    return min(max(current, up), down)


def remember(memory: Memory, answer: int, policy: Policy, now_s: float) -> tuple[tuple[float, int], ...]:
    """The answers to keep: as long as the longer window, a repeat as one entry at its latest time."""
    horizon = now_s - max(policy.up_window_s, policy.down_window_s)
    kept = [entry for entry in memory.answers if entry[0] > horizon]
    if kept and kept[-1][1] == answer:
        kept.pop()
    return (*kept, (now_s, answer))


def _since(memory: Memory, cutoff_s: float) -> list[int]:
    return [answer for given_s, answer in memory.answers if given_s > cutoff_s]
