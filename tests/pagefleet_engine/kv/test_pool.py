"""The block pool: what is taken, what stays findable, and that its books are right after anything."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.kv.pool import BlockPool, PoolCheck
from tests.pagefleet_engine.operations import OPERATIONS

WELL = PoolCheck(0, ())


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def published(pool: BlockPool, *numbers: int) -> list[int]:
    blocks = pool.reserve((), len(numbers), 0)
    assert blocks is not None
    for block, number in zip(blocks, numbers, strict=True):
        pool.publish(block, digest(number))
    return blocks


def test_a_new_pool_is_all_free() -> None:
    pool = BlockPool(5)
    assert (pool.used, pool.cached, pool.free, pool.available) == (0, 0, 5, 5)
    assert pool.check([]) == WELL


def test_taking_stops_at_the_last_block() -> None:
    pool = BlockPool(2)
    assert sorted(block for block in (pool.take(), pool.take()) if block is not None) == [0, 1]
    assert pool.take() is None
    assert pool.check([[0, 1]]) == WELL


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(4)
    cached = published(pool, 1, 2)
    pool.release(cached)
    assert pool.reserve(cached, 3, 0) is None
    assert pool.reserve(cached, 2, 1) is None
    assert (pool.used, pool.cached, pool.free) == (0, 2, 2)
    assert pool.match([digest(1), digest(2)]) == cached
    assert pool.reserve(cached, 2, 0) is not None


def test_blocks_of_a_running_sequence_are_shared_without_using_more() -> None:
    pool = BlockPool(2)
    first = published(pool, 1, 2)
    second = pool.reserve(pool.match([digest(1), digest(2)]), 0, 0)
    assert second == first
    assert pool.used == 2
    pool.release(first)
    assert pool.used == 2
    pool.release(second)
    assert (pool.used, pool.cached) == (0, 2)


def test_a_match_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(3)
    blocks = published(pool, 1, 3)
    assert pool.match([digest(1), digest(2), digest(3)]) == blocks[:1]
    assert pool.match([]) == []


def test_empty_blocks_go_before_cached_ones_and_prefix_ends_before_their_starts() -> None:
    pool = BlockPool(6)
    old, new = published(pool, 1, 2), published(pool, 3, 4)
    rest = pool.reserve((), 2, 0)
    assert rest is not None
    pool.release(old)
    pool.release(new)
    pool.release(rest)
    taken = [pool.take() for _ in range(6)]
    assert taken == [*rest, old[1], old[0], new[1], new[0]]
    assert pool.match([digest(1)]) == []


def test_using_a_prefix_again_makes_it_the_last_to_go() -> None:
    pool = BlockPool(2)
    old, new = published(pool, 1), published(pool, 2)
    pool.release(old)
    pool.release(new)
    again = pool.reserve(pool.match([digest(1)]), 0, 0)
    assert again is not None
    pool.release(again)
    assert [pool.take(), pool.take()] == [*new, *old]


def test_of_two_blocks_with_one_content_the_first_stays_known() -> None:
    pool = BlockPool(2)
    first, second = published(pool, 1), published(pool, 1)
    assert pool.match([digest(1)]) == first
    pool.publish(first[0], digest(9))
    assert pool.match([digest(9)]) == []
    pool.release(first)
    pool.release(second)
    assert (pool.cached, pool.free) == (1, 1)
    assert pool.check([]) == WELL


def test_a_forgotten_block_is_not_found_and_is_free_after_its_release() -> None:
    pool = BlockPool(2)
    blocks = published(pool, 1)
    own = pool.take()
    assert own is not None
    pool.forget([*blocks, own])
    assert pool.match([digest(1)]) == []
    pool.release([*blocks, own])
    assert (pool.cached, pool.free) == (0, 2)
    assert pool.check([]) == WELL


def test_the_checker_counts_blocks_that_nobody_names() -> None:
    pool = BlockPool(3)
    lost = pool.reserve((), 2, 0)
    assert lost is not None
    assert pool.check([lost[:1]]) == PoolCheck(1, ())


def _lose_reference(pool: BlockPool) -> None:
    pool._references[1] = 0


def _tie_a_knot(pool: BlockPool) -> None:
    pool._next[4] = 3


def _break_a_back_link(pool: BlockPool) -> None:
    pool._previous[4] = 1


def _miscount_available(pool: BlockPool) -> None:
    pool.available += 1


def _lose_index_entry(pool: BlockPool) -> None:
    pool._block_of.clear()


def _miscount_cached(pool: BlockPool) -> None:
    pool._cached += 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_lose_reference, "free list and reference counts disagree"),
        (_tie_a_knot, "twice in the free list"),
        (_break_a_back_link, "back link"),
        (_miscount_available, "counted as available"),
        (_lose_index_entry, "prefix index and blocks disagree"),
        (_miscount_cached, "counted as cached"),
    ],
)
def test_the_checker_finds_every_kind_of_damage(damage: Callable[[BlockPool], None], words: str) -> None:
    pool = BlockPool(5)
    held = published(pool, 1, 2)
    pool.release(held[:1])
    damage(pool)
    assert any(words in fault for fault in pool.check([held[1:]]).faults)


def test_the_checker_finds_a_block_that_is_named_but_not_held() -> None:
    assert "1 tables name it" in BlockPool(2).check([[0]]).faults[0]


class PoolModel:
    """The pool's meaning without any lists: a count for each block and what is findable."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.tables: list[list[int]] = []

    def operate(self, dice: random.Random) -> None:
        what = dice.randrange(6)
        if what <= 1:
            wanted = [digest(number) for number in range(dice.randrange(5))]
            before = self.pool.available
            table = self.pool.reserve(self.pool.match(wanted), dice.randrange(4), dice.randrange(3))
            if table is None:
                assert self.pool.available == before
            else:
                self.tables.append(table)
        elif what == 2 and self.tables and (block := self.pool.take()) is not None:
            dice.choice(self.tables).append(block)
        elif what == 3 and self.tables:
            for position, block in enumerate(dice.choice(self.tables)):
                self.pool.publish(block, digest(position))
        elif what == 4 and self.tables:
            self.pool.release(self.tables.pop(dice.randrange(len(self.tables))))
        elif what == 5 and self.tables and dice.random() < 0.2:
            self.pool.forget(dice.choice(self.tables))

    def verify(self) -> None:
        assert self.pool.check(self.tables) == WELL
        named = Counter(block for table in self.tables for block in table)
        assert self.pool.used == len(named)
        assert self.pool.used + self.pool.cached + self.pool.free == self.pool.num_blocks


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(1, 200))
def test_the_books_are_right_after_any_short_history(dice: random.Random, num_blocks: int, operations: int) -> None:
    model = PoolModel(num_blocks)
    for _ in range(operations):
        model.operate(dice)
        model.verify()


def test_the_books_are_right_after_each_operation_of_a_long_history() -> None:
    dice = random.Random(1)
    for num_blocks in (1, 3, 9, 16):
        model = PoolModel(num_blocks)
        for _ in range(OPERATIONS // 4):
            model.operate(dice)
            model.verify()
