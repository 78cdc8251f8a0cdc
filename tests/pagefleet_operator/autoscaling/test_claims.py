"""How long pods without a place hold others back."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_operator.autoscaling import Claim
from pagefleet_operator.autoscaling.claims import CLAIM_LIMIT_S
from tests.pagefleet_operator.autoscaling.build import START

looks = st.lists(st.tuples(st.floats(0, 1000), st.booleans(), st.integers(0, 3)), max_size=40)
"""Seconds since the look before, whether pods wait, how many have got a place since."""


@settings(max_examples=100, deadline=None)
@given(looks)
def test_between_two_places_others_are_held_back_no_longer_than_the_limit(
    seen: list[tuple[float, bool, int]],
) -> None:
    claim, now_s, places, held_s = Claim(), 0.0, 0, 0.0
    for after_s, waits, more in seen:
        if claim.holds(now_s + after_s):
            held_s += after_s
        now_s += after_s
        places += more
        held_s = 0.0 if more else held_s
        claim = claim.seen(now_s, waits=waits, placed=START + timedelta(seconds=places) if places else None)
        assert held_s <= CLAIM_LIMIT_S
        if more:
            assert claim.holds(now_s) is waits, "who got a place may wait for the next one anew"


def test_pods_that_are_made_anew_go_on_with_the_wait_and_a_time_without_any_does_not_count() -> None:
    first = Claim(9, "gpu").seen(0.0, waits=True, placed=None)
    gone = first.seen(600.0, waits=False, placed=None)
    assert not gone.holds(600.0)
    back = gone.seen(5000.0, waits=True, placed=None)
    assert back.holds(5299.0)
    assert not back.holds(5300.0)


def test_a_pod_that_is_gone_takes_its_place_along_and_gives_no_wait_anew() -> None:
    placed = Claim().seen(0.0, waits=True, placed=START)
    for time in (None, START - timedelta(hours=1), START):
        assert not placed.seen(CLAIM_LIMIT_S, waits=True, placed=time).holds(CLAIM_LIMIT_S)


def test_other_pods_may_fit_where_those_before_them_did_not_and_wait_anew() -> None:
    ran_out = (
        Claim()
        .seen(0.0, waits=True, placed=None, template="16 GPUs")
        .seen(CLAIM_LIMIT_S, waits=True, placed=None, template="16 GPUs")
    )
    assert not ran_out.holds(CLAIM_LIMIT_S)
    changed = ran_out.seen(CLAIM_LIMIT_S, waits=True, placed=None, template="8 GPUs")
    assert changed.holds(2 * CLAIM_LIMIT_S - 1)
    assert not changed.seen(CLAIM_LIMIT_S + 1, waits=True, placed=None, template="8 GPUs").holds(2 * CLAIM_LIMIT_S)
