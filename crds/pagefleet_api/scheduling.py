"""`spec.engine.scheduling`: who of those that wait in an engine is next.

Sources: `SchedulerPolicy` in vllm/config/scheduler.py (0.18); `schedule_policy` and `enable_priority_scheduling` in
sglang/srt/server_args.py (0.5.11); the queues of TGI and TensorRT-LLM are in order of arrival.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from pagefleet_api.runtimes import Runtime
from pagefleet_api.schema import Model, joint

DEFAULT: Literal["fcfs"] = "fcfs"
"""What every engine does by itself."""
PRIORITY = "priority"
_LIMITED = (Runtime.VLLM, Runtime.SGLANG)
_THEIRS = (DEFAULT, PRIORITY)
_ANOTHER = (
    "engine.scheduling.policy {} is not available with engine.runtime {}; "
    f"use {' or '.join(_THEIRS)}, or engine.runtime {Runtime.PAGEFLEET}"
)


class Scheduling(Model):
    """The order of those who wait."""

    policy: Literal["fcfs", "priority", "sjf", "fair"] = Field(
        DEFAULT,
        description="fcfs: by arrival. priority: by the field `priority` of requests, the smallest first. sjf: the "
        "least work first, of prompt and longest answer; waiting shortens it. fair: by what tenants (API keys, else "
        "the field `user`) were served, the least first. Default: fcfs.",
        json_schema_extra={"maxLength": 16},
    )


RULES = (
    joint(
        "!has(self.scheduling) || !has(self.scheduling.policy) || !has(self.runtime) "
        f"|| !(self.runtime in [{', '.join(repr(each.value) for each in _LIMITED)}]) "
        f"|| self.scheduling.policy in [{', '.join(map(repr, _THEIRS))}]",
        _ANOTHER,
        *("self.scheduling.policy", "self.runtime"),
        field="scheduling.policy",
        plain=_ANOTHER.format("sjf or fair", "vllm or sglang"),
    ),
)
"""On the engine, beside the rule for those that have no choice at all."""


def refusals(policy: str, runtime: Runtime) -> Iterator[str]:
    """Why that engine, which has a choice, has not this one."""
    if runtime in _LIMITED and policy not in _THEIRS:
        yield _ANOTHER.format(policy, runtime)
