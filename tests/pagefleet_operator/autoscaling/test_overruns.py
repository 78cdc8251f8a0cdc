"""A number that proved too small does not come back while the load is like that."""

from dataclasses import replace

import pytest

from pagefleet_api.step_costs import default
from pagefleet_cli.simulation import EngineModel, FleetModel, Request, Trace, timeline
from pagefleet_operator.autoscaling import Policy, decide
from pagefleet_operator.autoscaling.policy import DOWN
from pagefleet_operator.autoscaling.values import Descent, Memory
from tests.pagefleet_operator.autoscaling.build import at, fleet, ready

SLOW = default().model_copy(
    update={name: 10 * getattr(default(), name) for name in ("fixed_s", "weights_s", "token_s")}
)
POLICY = Policy(
    min_replicas=1, max_replicas=8, waiting_target=4, kv_target=0.75, max_num_seqs=64, down=replace(DOWN, window_s=60)
)


@pytest.mark.parametrize("per_s", [4.0, 5.0])
def test_a_load_that_fewer_pods_cannot_compute_ends_in_one_number(per_s: float) -> None:
    """In flight on many pods it would fit the seats of fewer, which compute it more slowly and queue."""
    engine = EngineModel(costs=SLOW, kv_tokens=SLOW.num_kv_blocks * 16, max_num_seqs=64)
    load = Trace(tuple(Request(place / per_s, 900, 250) for place in range(round(1500 * per_s))))
    seen = timeline(POLICY, load, FleetModel(engine=engine, start_p50_s=40, start_p95_s=40))
    late = [moment.desired for moment in seen if moment.t > 700]
    assert len(late) <= 1, [(moment.t, moment.desired) for moment in seen]
    assert seen[-1].desired < 8, "and that is not simply the most"


def test_ways_down_that_follow_closely_are_one_and_a_queue_soon_after_it_is_their_proof() -> None:
    policy = replace(POLICY, max_num_seqs=8, down=replace(DOWN, window_s=0))
    down = decide(policy, fleet(*[ready(running=2)] * 6), Memory(6), at(0))
    assert (down.desired, down.memory.descent) == (2, Descent(6, 12, at(0).monotonic_s))
    again = decide(policy, fleet(*[ready(running=3)] * 2), down.memory, at(10))
    assert (again.desired, again.memory.descent) == (1, Descent(6, 12, at(10).monotonic_s))
    queued = decide(policy, fleet(ready(running=8, waiting=30)), again.memory, at(20))
    assert queued.memory.overrun is not None
    assert queued.memory.overrun[:2] == (2, 12), "half of the way is tried next, at the load before it"
    late = decide(policy, fleet(ready(running=8, waiting=30)), again.memory, at(400))
    assert late.memory.overrun is not None
    assert late.memory.overrun[:2] == (1, 38), "a queue much later has other causes"
