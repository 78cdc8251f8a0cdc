"""Block tables and the hash chain that names their contents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.kv import digests
from pagefleet_engine.kv.pool import BlockPool
from pagefleet_engine.kv.table import BlockTable

TOKENS = st.lists(st.integers(0, 2**32 - 1), min_size=48, max_size=48)


def chain(token_ids: list[int], blocks: int, salt: str = "") -> list[bytes]:
    result: list[bytes] = []
    digests.extend(result, digests.root(salt), token_ids, blocks)
    return result


@given(TOKENS, st.integers(0, 47), st.integers(0, 2**32 - 1))
def test_a_changed_token_changes_the_names_from_its_block_on(token_ids: list[int], position: int, other: int) -> None:
    changed = [*token_ids[:position], other, *token_ids[position + 1 :]]
    same_blocks = 3 if changed == token_ids else position // 16
    for index, (name, changed_name) in enumerate(zip(chain(token_ids, 3), chain(changed, 3), strict=True)):
        assert (name == changed_name) == (index < same_blocks)


@given(TOKENS)
def test_a_chain_made_in_pieces_is_the_chain_made_at_once(token_ids: list[int]) -> None:
    pieces: list[bytes] = []
    for blocks in (1, 1, 3, 2):
        digests.extend(pieces, digests.root(""), token_ids, blocks)
    assert pieces == chain(token_ids, 3)
    assert all(len(name) == digests.DIGEST_BYTES for name in pieces)


@given(st.text(), st.text())
def test_another_salt_names_everything_differently(salt: str, other: str) -> None:
    token_ids = list(range(16))
    assert (chain(token_ids, 1, salt) == chain(token_ids, 1, other)) == (salt == other)


def computed_table(pool: BlockPool, token_ids: list[int], salt: str = "") -> BlockTable:
    table = BlockTable(pool, salt)
    assert table.fill(token_ids, len(token_ids) - 1, 0) is not None
    table.publish(token_ids, len(token_ids))
    return table


@pytest.mark.parametrize(
    ("tokens", "cached"), [(1, 0), (16, 0), (17, 16), (32, 16), (33, 32), (48, 32), (49, 48), (60, 48)]
)
def test_a_known_prefix_is_taken_in_whole_blocks_but_never_to_the_last_token(tokens: int, cached: int) -> None:
    pool = BlockPool(16)
    known = list(range(64))
    computed_table(pool, known).release()
    table = BlockTable(pool, "")
    assert table.fill(known[:tokens], tokens - 1, 0) == cached
    assert table.capacity_tokens >= tokens > table.capacity_tokens - 16


def test_blocks_can_be_found_only_once_they_are_computed() -> None:
    pool = BlockPool(8)
    token_ids = list(range(40))
    first = BlockTable(pool, "")
    assert first.fill(token_ids, 39, 0) == 0
    for computed, found in ((15, 0), (16, 16), (31, 16), (40, 32)):
        first.publish(token_ids, computed)
        second = BlockTable(pool, "")
        assert second.fill(token_ids, 39, 0) == found
        second.release()


def test_a_salt_of_its_own_shares_nothing() -> None:
    pool = BlockPool(8)
    token_ids = list(range(33))
    computed_table(pool, token_ids, "one").release()
    assert BlockTable(pool, "two").fill(token_ids, 32, 0) == 0
    assert BlockTable(pool, "one").fill(token_ids, 32, 0) == 32


def test_a_table_of_its_own_neither_takes_from_the_prefix_cache_nor_gives_to_it() -> None:
    pool = BlockPool(16)
    token_ids = list(range(33))
    alone = BlockTable(pool, "", shared=False)
    assert alone.fill(token_ids, 32, 0) == 0
    alone.publish(token_ids, 33)
    assert BlockTable(pool, "").fill(token_ids, 32, 0) == 0
    computed_table(pool, token_ids)
    assert BlockTable(pool, "", shared=False).fill(token_ids, 32, 0) == 0


def test_a_table_that_does_not_fit_stays_empty() -> None:
    pool = BlockPool(3)
    table = BlockTable(pool, "")
    assert table.fill(list(range(33)), 32, 1) is None
    assert (table.blocks, table.capacity_tokens, pool.used) == ([], 0, 0)


def test_a_table_grows_until_the_pool_is_used_up() -> None:
    pool = BlockPool(2)
    table = BlockTable(pool, "")
    assert table.fill([1], 0, 0) == 0
    before = list(table.blocks)
    assert table.grow()
    assert table.blocks[:1] == before
    assert table.capacity_tokens == 32
    assert not table.grow()
    assert pool.check([table.blocks]) == (0, ())


def test_disowned_blocks_are_not_read_again() -> None:
    pool = BlockPool(4)
    token_ids = list(range(33))
    table = computed_table(pool, token_ids)
    table.disown()
    table.release()
    assert table.blocks == []
    assert BlockTable(pool, "").fill(token_ids, 32, 0) == 0
