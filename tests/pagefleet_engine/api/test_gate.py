"""Who comes in, where memory seats fewer than the launch allows."""

from typing import cast

import pytest
from msgspec.structs import replace

from pagefleet_api.launch import Launch
from pagefleet_api.metrics import Engine
from pagefleet_engine.api.core_client import Clock, CoreClient
from pagefleet_engine.api.errors import QueueFull
from pagefleet_engine.api.gate import Claim, Gate
from pagefleet_engine.api.recorder import Recorder
from pagefleet_engine.wire import CoreStatus
from tests.pagefleet_engine.api.test_exposition import STATUS
from tests.pagefleet_engine.api.test_planning import READY

LONG_PROMPT_TOKENS = 16 * READY.num_blocks // 2


class Core:
    """A core that is ready and has looked at nothing yet."""

    failure = None
    ready = READY
    status: CoreStatus = replace(STATUS, running=0, waiting=0)


def gate(
    max_num_seqs: int = 256,
    max_queued: int = 4,
    clock: Clock = lambda: 0.0,
    core: Core | None = None,
    recorder: Recorder | None = None,
) -> Gate:
    words = ["--max-num-seqs", str(max_num_seqs), "--max-queued-requests", str(max_queued)]
    made = Gate(
        Launch.parse(["--model", "pkg://x", *words]), cast(CoreClient, core or Core()), recorder or Recorder(), clock
    )
    made.loaded = True
    return made


def enter(gate: Gate, prompt_tokens: int, count: int = 1) -> Claim | None:
    """What the endpoint does; None when the queue is full."""
    claim: Claim | None = None
    try:
        claim = gate.admit(count)
        claim.size([prompt_tokens] * count)
    except QueueFull:
        if claim is not None:
            claim.release_rest()
        return None
    return claim


def test_a_burst_of_prompts_of_which_memory_holds_two_is_bounded_by_two_seats_and_the_queue() -> None:
    door = gate()
    assert sum(enter(door, LONG_PROMPT_TOKENS) is not None for _ in range(260)) == 2 + 4
    assert door.open_sequences == 6


def test_a_burst_that_came_in_before_its_lengths_were_known_is_bounded_in_order_of_arrival() -> None:
    door = gate()
    claims = [door.admit(1) for _ in range(260)]
    stayed = []
    for number, claim in enumerate(claims):
        try:
            claim.size([LONG_PROMPT_TOKENS])
        except QueueFull:
            claim.release_rest()
        else:
            stayed.append(number)
    assert stayed == [0, 1, 2, 3, 4, 5]
    assert door.open_sequences == 6


def test_a_burst_of_short_prompts_takes_all_seats_that_there_are() -> None:
    door = gate(max_num_seqs=16)
    assert sum(enter(door, 10) is not None for _ in range(100)) == 16 + 4


def test_a_request_alone_comes_in_however_many_answers_it_asks_for() -> None:
    door = gate(max_queued=0)
    assert enter(door, LONG_PROMPT_TOKENS, count=4) is not None
    assert enter(door, LONG_PROMPT_TOKENS) is None


def test_places_that_are_given_back_leave_nothing_behind() -> None:
    door = gate()
    for tokens in (1, 17, 100, LONG_PROMPT_TOKENS):
        claim = enter(door, tokens, count=3)
        assert claim is not None
        claim.end_one()
        claim.release_rest()
        claim.release_rest()
    assert (door.open_sequences, door.sized_sequences, door.sized_blocks) == (0, 0, 0)
    with pytest.raises(QueueFull):
        while True:
            door.admit(1)


class Watch:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def told_s(gate: Gate, choices: int = 1) -> float | None:
    """Seconds after which a refused client should come again."""
    with pytest.raises(QueueFull) as refusal:
        gate.admit(choices)
    return refusal.value.retry_after_s


def test_refused_clients_are_told_one_after_the_other_when_a_place_will_be_free() -> None:
    core, watch = Core(), Watch()
    core.status = replace(STATUS, running=2, waiting=4)
    door = gate(max_num_seqs=2, clock=watch, core=core)
    claims = [door.admit(1) for _ in range(6)]
    assert told_s(door) == 1  # nobody knows anything yet
    for claim in claims[:3]:
        watch.now_s += 4
        claim.end_one()
        door.admit(1)
    assert [told_s(door), told_s(door), told_s(door, choices=3)] == [4, 8, 20]
    watch.now_s += 2
    assert told_s(door) == 22


def test_until_ends_are_measured_a_refused_client_is_told_by_how_long_answers_took() -> None:
    core = Core()
    core.status = replace(STATUS, running=2, waiting=4)
    recorder = Recorder()
    door = gate(max_num_seqs=8, core=core, recorder=recorder)
    recorder.observe(Engine.REQUEST_INFERENCE, 6.0)
    door.admit(6)
    assert [told_s(door), told_s(door)] == [3, 6]


def test_requests_that_never_began_are_no_ends() -> None:
    core, watch = Core(), Watch()
    core.status = replace(STATUS, running=2, waiting=4)
    door = gate(max_num_seqs=2, clock=watch, core=core)
    for _ in range(5):
        watch.now_s += 9
        door.admit(1).release_rest()
    door.admit(6)
    assert told_s(door) == 1
