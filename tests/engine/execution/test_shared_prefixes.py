"""Groups of decode rows that share keys, compared with the rows' blocks as rows come and go."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.block_tables import BlockTables
from engine.execution.shared_prefixes import (
    SharedPrefixes,
    Sharing,
    SharingRule,
    most_groups,
    nobody_shares,
)
from engine.step import Row
from tests.engine.rigs.hand_driven import data_row, sequence_of
from tests.examples import examples

BLOCK = 4
ALL_THAT_MATTERS = 2**26  # bytes per token, so many that every shared read pays
BATCH_SLOTS = 512
EAGER = SharingRule(BLOCK, ALL_THAT_MATTERS, BLOCK, 4)


def decode(blocks: list[int]) -> Row:
    """Return a one-token row of a sequence with these shared blocks, and a private block to
    write.
    """
    sequence = sequence_of([5] * (BLOCK * len(blocks) + 1), block_ids=[*blocks, 999])
    sequence.batch_slot = sequence.lease_id % BATCH_SLOTS
    return data_row(sequence, BLOCK * len(blocks), 1)


def blocks_of(row: Row) -> tuple[int, ...]:
    """Return all block ids of a row whose sequence was in no earlier step."""
    return tuple(np.frombuffer(row.block_ids, np.int32).tolist())


class Prefixes(SharedPrefixes):
    """A `SharedPrefixes` with its own tables, updated from the rows."""

    def __init__(self, rule: SharingRule) -> None:
        super().__init__(rule)
        self.tables = BlockTables(num_batch_slots=BATCH_SLOTS, num_blocks=8)

    def of(self, rows: list[Row]) -> Sharing | None:
        self.tables.update(rows)
        return self.find(rows, self.tables)


def expect_true(sharing: Sharing, rows: list[Row], most_rows: int) -> None:
    """Check that each row is in one group of at most `most_rows` rows, whose blocks the row has
    too.
    """
    assert sorted(sharing.order.tolist()) == list(range(len(rows)))
    for extra in (0, 5):
        made = sharing.fields(len(rows) + extra)
        assert len(made["key_ends"]) == most_groups(len(rows) + extra)
        assert made["group_starts"][0] == 0
        assert made["group_starts"][-1] == len(rows) + extra
        for (first, behind), end in zip(
            pairwise(made["group_starts"].tolist()), made["key_ends"].tolist(), strict=True
        ):
            assert 0 <= behind - first <= most_rows
            assert made["own_starts"][first:behind].tolist() == [end] * (behind - first)
            members = [rows[index] for index in sharing.order[first:behind]]
            blocks = {blocks_of(row)[: end // BLOCK] for row in members}
            assert len(blocks) <= 1
            assert all(end <= row.start for row in members)
            assert not end or behind <= len(rows), "padding shares nothing"


def members(sharing: Sharing, rows: list[Row]) -> dict[frozenset[tuple[int, ...]], int]:
    """Return the groups that share keys: each group's rows, by their blocks, and its number of
    shared keys.
    """
    paths = [blocks_of(row)[:-1] for row in rows]
    return {
        frozenset(paths[row] for row in sharing.order[start:end]): keys
        for (start, end), keys in zip(
            pairwise(sharing.starts.tolist()), sharing.key_ends.tolist(), strict=True
        )
    }


BLOCKS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@examples(4)
@given(
    st.lists(BLOCKS, min_size=1, max_size=12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 30), BLOCKS), max_size=20),
    st.sampled_from([4, 8]),
)
def test_shared_keys_are_really_shared_while_rows_come_and_go(
    paths: list[list[int]], changes: list[tuple[bool, int, list[int]]], most_rows: int
) -> None:
    prefixes = Prefixes(SharingRule(BLOCK, ALL_THAT_MATTERS, BLOCK, most_rows))
    rows = [decode(path) for path in paths]
    for leaves, at, path in [(False, 0, paths[0]), *changes]:
        if leaves and len(rows) > 1:
            del rows[at % len(rows)]
        else:
            rows.insert(at % (len(rows) + 1), decode(path))
        sharing = prefixes.of(rows)
        if sharing is not None:
            expect_true(sharing, rows, most_rows)
        assert prefixes.of(rows) is sharing, "nothing came or left"


@given(st.lists(BLOCKS, min_size=2, max_size=12))
def test_rows_with_a_first_block_in_common_share(paths: list[list[int]]) -> None:
    alike = len({path[0] for path in paths}) < len(paths)
    assert (Prefixes(EAGER).of([decode(path) for path in paths]) is not None) == alike


def test_groups_come_first_and_large_ones_are_cut_evenly() -> None:
    rows = [decode([7, 8]), *(decode([1, 2, n]) for n in range(10, 15)), decode([7, 8])]
    sharing = Prefixes(EAGER).of(rows)
    assert sharing is not None
    expect_true(sharing, rows, 4)
    made = sharing.fields(len(rows))
    assert made["key_ends"].tolist() == [8, 8, 8, 0]
    assert made["group_starts"].tolist() == [0, 2, 5, 7, 7]


def test_the_row_order_of_the_step_decides_nothing() -> None:
    rows = [decode([1, 2]), decode([3]), decode([1, 4])]
    forth, back = Prefixes(EAGER).of(rows), Prefixes(EAGER).of(rows[::-1])
    assert forth is not None
    assert back is not None
    assert members(forth, rows) == members(back, rows[::-1]) == {frozenset({(1, 2), (1, 4)}): BLOCK}


def test_little_is_not_worth_it() -> None:
    rows = [decode([1, 2, 3]), decode([1, 2, 4])]
    assert Prefixes(EAGER).of(rows) is not None
    for bytes_of_token, least in ((2**23 - 1, BLOCK), (ALL_THAT_MATTERS, 2 * BLOCK + 1)):
        assert Prefixes(SharingRule(BLOCK, bytes_of_token, least, 4)).of(rows) is None
    assert Prefixes(SharingRule(BLOCK, 2**23, 2 * BLOCK, 4)).of(rows) is not None


def test_a_row_that_leaves_leaves_its_group_and_one_that_comes_joins() -> None:
    """Keep most groups when a few of many rows change."""
    rows = [decode([1, 2, 100 + n]) for n in range(4)] + [decode([50 + n]) for n in range(40)]
    prefixes = Prefixes(EAGER)

    def in_groups() -> int:
        sharing = prefixes.of(rows)
        assert sharing is not None
        expect_true(sharing, rows, 4)
        return int(sharing.starts[-1])

    assert in_groups() == 4
    del rows[0]
    assert in_groups() == 3
    rows.append(decode([1, 2, 7]))
    assert in_groups() == 4
    del rows[0], rows[0], rows[-1]
    assert prefixes.of(rows) is None, "one alone is no group"


def test_the_block_that_a_row_writes_is_not_shared() -> None:
    """Share no block that a row writes, even if several rows list it."""
    writing = [data_row(sequence_of([5] * 7, block_ids=[1, 2]), 6, 1) for _ in range(2)]
    sharing = Prefixes(EAGER).of(writing)
    assert sharing is not None
    assert sharing.key_ends.tolist() == [BLOCK]


def test_padding_is_in_groups_without_keys() -> None:
    made = nobody_shares(4).fields(10)
    assert made["group_starts"].tolist() == [0, 4, 8, 10, 10, 10, 10]
    assert not made["key_ends"].any()
    assert not made["own_starts"].any()


@pytest.mark.parametrize("most_rows", [1, 2, 3])
def test_groups_of_fewer_than_four_rows_are_refused(most_rows: int) -> None:
    """Refuse small groups: `most_groups` would be too small for them."""
    with pytest.raises(ValueError, match="too small"):
        SharingRule(BLOCK, 1, BLOCK, most_rows)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, 255])
@pytest.mark.parametrize("most_rows", [4, 16])
def test_most_groups_holds_when_all_rows_are_pairs(num_rows: int, most_rows: int) -> None:
    """Use pairs only, which give the largest number of groups; a row left over shares nothing."""
    pairs = [decode([1 + row // 2]) for row in range(num_rows)]
    rule = SharingRule(BLOCK, ALL_THAT_MATTERS, BLOCK, most_rows)
    sharing = Prefixes(rule).of(pairs)
    if num_rows == 1:
        assert sharing is None
        return
    assert sharing is not None
    expect_true(sharing, pairs, most_rows)
    assert np.count_nonzero(sharing.fields(num_rows)["key_ends"]) == num_rows // 2


def test_a_step_of_one_decode_or_none_changes_nothing_for_those_that_follow() -> None:
    rows = [decode([1, 2, n]) for n in range(4)]
    prefixes = Prefixes(EAGER)
    before = prefixes.of(rows)
    assert before is not None
    assert prefixes.of([]) is None
    assert prefixes.of(rows[:1]) is None
    assert prefixes.of(rows) is before
    assert prefixes.of([]) is None
    fewer = [rows[1], decode([7]), rows[3]]  # the row that left is noticed
    after = prefixes.of(fewer)
    assert after is not None
    expect_true(after, fewer, EAGER.most_rows)
    assert after.order.tolist() == [0, 2, 1]
