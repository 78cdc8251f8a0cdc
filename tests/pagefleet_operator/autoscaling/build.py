"""Short ways to write fleets down in scaling tests."""

from datetime import UTC, datetime, timedelta

from pagefleet_api.load import EngineState, Load
from pagefleet_operator.autoscaling import Fleet, Outcome, PodLoad, Policy
from pagefleet_operator.autoscaling import decide as decide_values
from pagefleet_operator.autoscaling.values import Memory
from pagefleet_operator.facts.observed import Now

START = datetime(2026, 1, 1, tzinfo=UTC)
BLOCKS = 1000

DEFAULTS = Policy(min_replicas=1, max_replicas=6, waiting_target=4, kv_target=0.75, max_num_seqs=8)


def at(seconds: float) -> Now:
    """The time `seconds` after the tests' start."""
    return Now(START + timedelta(seconds=seconds), 1000.0 + seconds)


def load(
    waiting: int = 0,
    running: int = 0,
    kv: float = 0.0,
    state: EngineState = EngineState.READY,
    queued_tokens: int = 0,
) -> Load:
    """An answer of an engine with eight seats."""
    return Load(
        state=state,
        running=running,
        waiting=waiting,
        max_num_seqs=8,
        block_size=16,
        blocks_used=round(kv * BLOCKS),
        blocks_total=BLOCKS,
        queued_prompt_tokens=queued_tokens,
        seconds_since_last_step=0,
    )


def ready(waiting: int = 0, running: int = 0, kv: float = 0.0, *, age_s: float = 1.0) -> PodLoad:
    """A ready pod that answered `age_s` ago."""
    return PodLoad("pod", True, True, load(waiting, running, kv), age_s)


SILENT = PodLoad("silent", True, True)
"""Ready, and no answer ever."""
CRASHED = PodLoad("crashed", False, True)
STARTING = PodLoad("starting", False, True, load(state=EngineState.STARTING), 1.0)
UNPLACED = PodLoad("unplaced", False, False)


def fleet(*pods: PodLoad, current: int | None = None, rollout: bool = False) -> Fleet:
    """A fleet of these pods; as many are asked for as there are."""
    return Fleet(len(pods) if current is None else current, pods, rollout)


def calm(desired: int) -> Memory:
    """A memory with nothing in its windows."""
    return Memory(desired)


def decide(pods: Fleet, policy: Policy = DEFAULTS, *, before: int | None = None, now_s: float = 0.0) -> Outcome:
    """The decision with empty windows."""
    number = before if before is not None else pods.current
    return decide_values(policy, pods, calm(number or 0), at(now_s))
