"""What counts as alive."""

from dataclasses import replace

import pytest

from pagefleet_engine.api.health import (
    FIRST_HEARTBEAT_BOUND_S,
    HEARTBEAT_BOUND_S,
    STEP_BOUND_S,
    CoreSeen,
    ailment,
)

IDLE = CoreSeen(
    started_at_s=0.0,
    loop_beat_at_s=1010.0,
    heard_at_s=1000.0,
    failure=None,
    busy_since_s=None,
    since_last_step_s=900.0,
)
BUSY = replace(IDLE, busy_since_s=500.0, since_last_step_s=0.0)

STARTING = replace(IDLE, heard_at_s=None, loop_beat_at_s=FIRST_HEARTBEAT_BOUND_S)


@pytest.mark.parametrize(
    ("seen", "now_s", "said"),
    [
        (IDLE, 1000.1, None),
        (IDLE, 1000.0 + HEARTBEAT_BOUND_S + 1, "the core has said nothing for 11 s"),
        (BUSY, 1000.1, None),
        (BUSY, 1000.0 + STEP_BOUND_S, None),
        (replace(BUSY, since_last_step_s=9.0), 1002.0, "no step has ended for 11 s while requests are open"),
        # The latest step was long ago, as nobody asked for one.
        (replace(BUSY, busy_since_s=999.9, since_last_step_s=900.0), 1000.1, None),
        (replace(IDLE, failure="the core process has ended"), 1000.0, "the core process has ended"),
        (replace(IDLE, loop_beat_at_s=980.0), 1000.0, "the API process has been stuck for 20 s"),
        (STARTING, FIRST_HEARTBEAT_BOUND_S, None),
        (replace(STARTING, loop_beat_at_s=121.0), 121.0, "the core has said nothing for 121 s since its start"),
    ],
)
def test_an_engine_is_alive_while_its_core_speaks_and_steps_end(seen: CoreSeen, now_s: float, said: str | None) -> None:
    assert ailment(seen, now_s) == said
