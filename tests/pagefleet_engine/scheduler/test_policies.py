"""Whose turn is next: by priority, by work, by what tenants were served; and that it comes to everybody."""

import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_api.launch import SCHEDULING_POLICIES
from pagefleet_engine.kv import table
from pagefleet_engine.kv.pool import BlockPool
from pagefleet_engine.kv.table import BlockTable
from pagefleet_engine.scheduler import fair
from pagefleet_engine.scheduler.fair import ANSWER_TOKEN_COST, PROMPT_TOKEN_COST
from pagefleet_engine.scheduler.policies import POLICIES
from pagefleet_engine.scheduler.ranked import SHORTENED_TOKENS, ShortestLine
from pagefleet_engine.scheduler.sequence import Sequence
from pagefleet_engine.wire import Submit
from tests.pagefleet_engine.core.engine_rig import Rig, submit


def one_at_a_time(policy: str) -> Rig:
    return Rig(max_num_seqs=1, policy=policy, check=False)


def order(rig: Rig) -> list[int]:
    """Everybody in the order of their first seats."""
    rig.run()
    return list(rig.cached)


def prompt(number: int, tokens: int) -> list[int]:
    return [(number * 37 + index) % 997 for index in range(tokens)]


def test_every_policy_of_a_launch_is_there() -> None:
    assert set(POLICIES) == set(SCHEDULING_POLICIES)


def test_by_priority_the_smallest_number_is_first_and_equal_ones_go_by_arrival() -> None:
    rig = one_at_a_time("priority")
    rig.submit(submit(1, [1], 3))
    rig.step()
    rig.submit(*(submit(number, [1], 1, priority=each) for number, each in enumerate((5, 0, -3, 0, 5), 2)))
    assert order(rig) == [1, 4, 3, 5, 2, 6]


def test_by_priority_the_worst_gives_its_blocks_and_of_equal_ones_the_latest() -> None:
    rig = Rig(num_blocks=10, policy="priority")
    rig.submit(*(submit(number, prompt(number, 14), 60, priority=each) for number, each in enumerate((2, 1, 2, 0))))
    rig.run()
    assert rig.preemptions[3] == rig.preemptions[1] == 0
    assert rig.preemptions[2] >= 1
    ends = list(rig.ends)
    assert ends.index(3) < ends.index(0) < ends.index(2)


def test_by_priority_a_prompt_that_is_still_computed_does_not_give_way_to_a_worse_one_that_decodes() -> None:
    rig = Rig(num_blocks=12, max_num_batched_tokens=4, policy="priority")
    rig.submit(submit(1, prompt(1, 14), 60, priority=1))
    while 1 not in rig.tokens:
        rig.step()
    rig.submit(submit(2, prompt(2, 140), 20, priority=0))
    rig.run()
    assert (rig.preemptions[1], rig.preemptions[2]) == (1, 0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 60)), min_size=2, max_size=12))
def test_by_priority_the_first_of_all_never_gives_way_and_everybody_ends(requests: list[tuple[int, int, int]]) -> None:
    rig = Rig(num_blocks=8, max_num_seqs=6, policy="priority")
    for number, (priority, tokens, answer) in enumerate(requests):
        rig.submit(submit(number, prompt(number, tokens), answer, priority=priority))
    rig.run()
    first = min(range(len(requests)), key=lambda number: (requests[number][0], number))
    assert rig.preemptions[first] == 0
    assert len(rig.ends) == len(requests)


def test_the_least_work_is_first_and_what_the_prefix_cache_has_is_none() -> None:
    rig = one_at_a_time("sjf")
    rig.submit(submit(1, range(97), 1))
    rig.run()
    rig.submit(
        submit(2, range(200, 260), 30),  # 90
        submit(3, range(300, 350), 20),  # 70
        submit(4, range(98), 40),  # 2 of its 98 are not cached: 42
        submit(5, range(400, 440), 3),  # 43
    )
    assert order(rig) == [1, 4, 5, 3, 2]


def test_a_short_request_passes_hundreds_that_came_long_before() -> None:
    line, pool = ShortestLine(), BlockPool(1)

    def join(number: int, answer: int) -> None:
        line.join(Sequence(submit(number, [1] * 100, answer), BlockTable(pool, "")))

    for number in range(300):
        join(number, 500)
    for sequence in islice(line.turns(), 200):
        line.leave(len(sequence.token_ids))
    join(1000, 20)
    assert [sequence.sequence_id for sequence in islice(line, 2)] == [1000, 200]


def test_very_long_requests_go_by_arrival_among_themselves() -> None:
    rig = Rig(num_blocks=2000, max_num_seqs=1, max_model_len=40_000, policy="sjf", check=False)
    rig.submit(submit(1, [1], 1))
    rig.step()
    rig.submit(*(submit(number, [1], tokens) for number, tokens in enumerate((20_000, 10_000, 8_000), 2)))
    assert [sequence.sequence_id for sequence in rig.scheduler._waiting] == [4, 2, 3]


def test_who_lost_its_seat_comes_before_shorter_ones() -> None:
    rig = Rig(num_blocks=9, max_num_seqs=3, policy="sjf")
    rig.submit(*(submit(number, prompt(number, 14), 60) for number in range(3)))
    while not rig.scheduler.snapshot().preemptions_total:
        rig.step()
    rig.submit(*(submit(number, [number], 1) for number in range(10, 14)))
    lost = max(rig.preemptions)
    assert next(iter(rig.scheduler._waiting)).sequence_id == lost
    rig.run()
    assert max(rig.preemptions.values()) <= 3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_nobody_is_passed_by_those_who_come_once_waiting_has_shortened_its_work_to_nothing(
    seed: int, at_once: int
) -> None:
    """So many may take seats between two arrivals and let the second pass the first: its work by what shortens it."""
    dice, rig = random.Random(seed), one_at_a_time("sjf")
    works: dict[int, int] = {}
    seated_before: dict[int, int] = {}
    for turn in range(60):
        for _ in range(at_once if turn < 40 else 0):
            number, tokens, answer = len(works), dice.choice((1, 5, 60)), dice.choice((1, 2))
            works[number], seated_before[number] = tokens + answer, len(rig.cached)
            rig.submit(submit(number, prompt(number, tokens), answer))
        rig.step()
    seats = {number: place for place, number in enumerate(order(rig))}
    for earlier in works:
        for later in range(earlier + 1, len(works)):
            if seats[later] < seats[earlier]:
                assert seated_before[later] - seated_before[earlier] < works[earlier] / SHORTENED_TOKENS


def test_a_long_request_gets_its_seat_though_short_ones_never_end() -> None:
    rig, waiting = one_at_a_time("sjf"), 5
    rig.submit(submit(0, prompt(0, 200), 100))
    for number in range(1, waiting):
        rig.submit(submit(number, [number], 1))
    for number in range(waiting, 200):
        rig.submit(submit(number, [number % 900], 1))
        rig.step()
        if 0 in rig.cached:
            break
    assert 300 / SHORTENED_TOKENS <= len(rig.cached) <= 300 / SHORTENED_TOKENS + waiting + 1, len(rig.cached)


def test_one_who_floods_the_queue_does_not_delay_the_others() -> None:
    last = {}
    for policy in ("fcfs", "fair"):
        rig = Rig(max_num_seqs=4, policy=policy, check=False)
        rig.submit(*(submit(number, prompt(number, 9), 4, tenant="flood") for number in range(40)))
        rig.submit(*(submit(100 + number, prompt(number, 9), 4, tenant="small") for number in range(3)))
        last[policy] = max(order(rig).index(100 + number) for number in range(3))
    assert last["fcfs"] == 42
    assert last["fair"] <= 6


def test_a_tenants_own_requests_go_by_arrival_and_without_tenants_all_do() -> None:
    rig = one_at_a_time("fair")
    rig.submit(*(submit(number, [number], 1) for number in range(8)))
    assert order(rig) == list(range(8))


def test_who_was_idle_begins_where_the_others_are() -> None:
    rig = one_at_a_time("fair")
    rig.submit(*(submit(number, prompt(number, 10), 1, tenant="busy") for number in range(30)))
    for _ in range(20):
        rig.step()
    rig.submit(*(submit(100 + number, prompt(number, 10), 1, tenant="idle") for number in range(10)))
    seats = order(rig)
    both = seats[seats.index(100) : seats.index(109)]
    assert sum(number < 100 for number in both) == pytest.approx(len(both) / 2, abs=1)


def test_who_asks_again_after_an_empty_queue_begins_where_the_last_one_is() -> None:
    rig = one_at_a_time("fair")
    rig.submit(*(submit(number, prompt(number, 10), 1, tenant="busy") for number in range(10)))
    rig.run()
    rig.submit(*(submit(50 + number, prompt(number, 10), 1, tenant="new") for number in range(4)))
    rig.submit(*(submit(60 + number, prompt(number, 10), 1, tenant="busy") for number in range(4)))
    assert sum(number >= 60 for number in order(rig)[10:14]) == 2


def test_who_comes_when_the_last_one_was_served_most_is_not_before_it_for_long() -> None:
    rig = one_at_a_time("fair")
    rig.submit(submit(0, [0], 1, tenant="small"), submit(1, prompt(1, 400), 1, tenant="large"))
    rig.run()
    for number in range(10, 18):
        rig.submit(submit(number, prompt(number, 10), 1, tenant="new"))
        rig.submit(submit(number + 90, prompt(number + 90, 10), 1, tenant="large"))
    assert sum(number >= 100 for number in order(rig)[2:10]) == 4


def test_who_comes_is_not_behind_those_who_wait_for_what_others_were_served_who_are_gone() -> None:
    rig = one_at_a_time("fair")
    rig.submit(submit(0, prompt(0, 400), 1, tenant="gone"))
    rig.submit(*(submit(10 + number, prompt(10 + number, 10), 1, tenant="waits") for number in range(30)))
    rig.step()
    rig.step()
    before = len(rig.cached)
    rig.submit(*(submit(100 + number, prompt(100 + number, 10), 1, tenant="comes") for number in range(4)))
    seats = order(rig)
    assert seats.index(103) <= before + 2 * 4, seats


@pytest.mark.parametrize("waiting", [1, 6])
def test_new_tenants_that_never_end_do_not_keep_waiting_who_is_not_new(waiting: int) -> None:
    rig = one_at_a_time("fair")
    rig.submit(submit(0, prompt(0, 100), 50, tenant="known"), submit(1, [1], 1, tenant="other"))
    account = PROMPT_TOKEN_COST * 100 + ANSWER_TOKEN_COST * 50
    rig.run()
    each = PROMPT_TOKEN_COST * 3 + ANSWER_TOKEN_COST * 2
    rig.submit(*(submit(2 + number, prompt(number, 3), 2, tenant=f"new {number}") for number in range(waiting)))
    rig.step()
    rig.submit(submit(1000, [1], 1, tenant="known"))
    for number in range(waiting, 700):
        rig.submit(submit(2 + number, prompt(number, 3), 2, tenant=f"new {number}"))
        while len(rig.cached) < 3 + number - waiting:
            rig.step()
        if 1000 in rig.cached:
            break
    assert len(rig.cached) <= account * (waiting + 2) / each + waiting + 3, len(rig.cached)


def served(rig: Rig, requests: dict[int, Submit]) -> Counter[str]:
    """What each tenant got, from what the engine told."""
    sums: Counter[str] = Counter()
    for number, cached in rig.cached.items():
        request = requests[number]
        tokens = PROMPT_TOKEN_COST * (len(request.prompt_token_ids) - cached)
        sums[request.tenant] += tokens + ANSWER_TOKEN_COST * len(rig.tokens.get(number, ()))
    return sums


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_two_tenants_with_a_backlog_are_served_alike_within_the_bound(seed: int, lookahead: bool) -> None:
    dice = random.Random(seed)
    seats, longest, answer = dice.choice((1, 3, 8)), dice.choice((5, 40)), dice.choice((2, 30))
    rig = Rig(
        dice.choice((12, 60)), max_num_seqs=seats, max_num_batched_tokens=dice.choice((16, 128)), policy="fair",
        check=False, lookahead=lookahead,
    )  # fmt: skip
    requests: dict[int, Submit] = {}
    few = dice.randrange(1, longest + 1)
    for number in range(60):  # one sends long ones, one short ones, a third comes and goes
        tenant = dice.choice("ffgggg") if number < 55 else "h"
        tokens = dice.randrange(1, longest + 1) if tenant == "f" else few
        requests[number] = submit(number, prompt(number, tokens), dice.randrange(1, answer + 1), tenant=tenant)
    for request in requests.values():
        if request.tenant != "h":
            rig.submit(request)
    bound = 2 * (PROMPT_TOKEN_COST * longest + ANSWER_TOKEN_COST * seats * answer)
    leads: list[int] = []
    while {"f", "g"} <= {sequence.request.tenant for sequence in rig.scheduler._waiting if not sequence.preemptions}:
        if len(leads) % 7 == 3 and (late := requests.get(55 + len(leads) // 7)):
            rig.submit(late)
        sums = served(rig, requests)
        leads.append(sums["f"] - sums["g"])
        rig.step()
    assert max(leads) - min(leads) <= bound
    rig.run()


@pytest.mark.parametrize("seed", range(3))
def test_forgetting_those_who_are_gone_changes_no_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for forget_from in (1, 1000):
        monkeypatch.setattr(fair, "_FORGET_FROM_TENANTS", forget_from)
        dice, rig = random.Random(seed), Rig(max_num_seqs=2, policy="fair", check=False)
        for number in range(120):
            rig.submit(
                submit(
                    number, prompt(number, dice.randrange(1, 30)), dice.randrange(1, 9), tenant=dice.choice("abcdefghi")
                )
            )
            for _ in range(dice.choice((0, 1, 2, 12))):
                rig.step()
        found.append(order(rig))
    assert found[0] == found[1]


def test_new_tenants_that_never_end_and_a_line_that_never_empties_take_no_more_and_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair, "_FORGET_FROM_TENANTS", 8)
    monkeypatch.setattr(fair, "_MOST_REMEMBERED", 16)
    rig, most = one_at_a_time("fair"), 0
    rig.submit(submit(1000, prompt(0, 90), 1, tenant="served most"))
    for number in range(200):
        rig.submit(submit(number, [number], 1, tenant=f"new {number}"))
        if number > 5:
            rig.step()
        most = max(most, len(rig.scheduler._waiting._accounts._served))  # type: ignore[attr-defined]
    here = 7 + 3  # who waits, who runs, who ran last
    assert most <= 2 * (16 + here), most
    assert rig.scheduler._waiting._accounts.served("served most") > 90  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_for_what_another_computes_is_passed_by_who_does_not(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LEAST_AWAITED_TOKENS", 16)
    rig = Rig(max_num_batched_tokens=128, policy=policy, in_order=False)
    rig.submit(submit(1, range(60), 3, tenant="a"))
    rig.submit(submit(2, [*range(40), 1], 3, tenant="a"), submit(3, [*range(40), 2], 3, tenant="b"))
    rig.submit(submit(4, range(500, 530), 60, tenant="a", priority=1))
    rig.step()
    assert list(rig.cached) == [2 if policy == "sjf" else 1, 4]
    rig.run()
    assert rig.cached[3] == 32


@pytest.mark.parametrize("policy", POLICIES)
def test_who_is_aborted_while_it_waits_is_out_of_the_line(policy: str) -> None:
    rig = Rig(max_num_seqs=1, policy=policy)
    rig.submit(*(submit(number, [number], 2, tenant=str(number % 2)) for number in range(5)))
    rig.step()
    rig.scheduler.abort([2, 4])
    assert len(rig.scheduler._waiting) == 2
    rig.scheduler.abort([1, 3])
    assert (len(rig.scheduler._waiting), rig.scheduler._waiting.tokens) == (0, 0)
    rig.run()
