"""Leases in the order of their blocks, and the reads that groups save, compared with brute
force.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from engine.execution.prefix_order import LeaseGroup, PrefixOrder, best_groups
from tests.examples import examples

Paths = list[list[int]]
PATHS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=7)


def in_common(paths: Paths) -> int:
    """Count the leading numbers that all paths share."""
    columns = zip(*paths, strict=False)
    return next(
        (at for at, column in enumerate(columns) if len(set(column)) > 1),
        min(len(path) for path in paths),
    )


def partitions(paths: Paths) -> Iterator[list[Paths]]:
    """Yield all partitions of the paths."""
    if not paths:
        yield []
        return
    first, *rest = paths
    for parts in partitions(rest):
        yield [[first], *parts]
        for index, part in enumerate(parts):
            yield [*parts[:index], [first, *part], *parts[index + 1 :]]


def most_saved(paths: Paths, least: int) -> int:
    """Return the most reads that any partition saves, by trying all."""
    return max(
        sum((len(part) - 1) * run for part in parts if (run := in_common(part)) >= least)
        for parts in partitions(paths)
    )


def ordered(paths: Paths) -> tuple[PrefixOrder, dict[int, list[int]]]:
    order, leases = PrefixOrder(), dict(enumerate(paths))
    for lease, path in leases.items():
        order.add(lease, np.array(path, np.int32))
    return order, leases


@examples(4)
@given(PATHS, st.integers(1, 4))
# the best partition saves 6 reads; the bound allows 7
@example([[0, 0], [0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]], 1)
def test_groups_save_nearly_what_any_groups_could(paths: Paths, least: int) -> None:
    order, path_of = ordered(paths)
    groups = order.groups(least)
    for group in groups:
        members = [path_of[order.leases[member]] for member in group.members]
        assert len(members) >= 2
        assert least <= group.run <= in_common(members)
    assert sum(group.saved for group in groups) >= 0.75 * most_saved(paths, least)
    every = [member for group in groups for member in group.members]
    assert len(every) == len(set(every)), "disjoint"


@examples(4)
@given(PATHS, st.lists(st.booleans(), min_size=7, max_size=7), PATHS)
def test_after_adding_and_removing_the_order_equals_a_fresh_one(
    paths: Paths, stays: list[bool], more: Paths
) -> None:
    order, path_of = ordered(paths)
    kept = [lease for lease, here in zip(path_of, stays, strict=False) if here]
    for lease in path_of.keys() - set(kept):
        order.remove(lease)
    assert order.known == set(kept)
    for path in more:
        lease = len(path_of)
        order.add(lease, np.array(path, np.int32))
        path_of[lease] = path
    fresh, fresh_path_of = ordered([path_of[lease] for lease in order.leases])
    assert len(order.leases) == len(kept) + len(more)
    assert set(kept) <= set(order.leases)
    assert [path_of[lease] for lease in order.leases] == [
        fresh_path_of[lease] for lease in fresh.leases
    ]
    assert order.groups(1) == fresh.groups(1)


def test_the_groups_are_one_of_all_or_one_for_each_branch_as_saves_more() -> None:
    """Choose one group for a long stem with short branches, but a group for each of several long
    branches.
    """
    assert best_groups(np.array([9, 8, 9]), 1) == [LeaseGroup(8, [0, 1, 2, 3])]
    assert best_groups(np.array([9, 2, 9]), 1) == [LeaseGroup(9, [0, 1]), LeaseGroup(9, [2, 3])]
    assert best_groups(np.array([9, 2, 9]), 10) == []
    assert best_groups(np.array([], np.int64), 1) == []


def test_only_the_blocks_that_are_named_count() -> None:
    order = PrefixOrder()
    for lease, path in enumerate(([1, 2, 3, 4], [1, 2, 3, 5])):
        order.add(lease, np.array(path, np.int32)[:2])
    assert order.groups(1) == [LeaseGroup(2, [0, 1])]
    assert order.groups(3) == []


def test_a_chain_as_long_as_there_may_be_rows_is_no_matter() -> None:
    """Order a chain of leases, each of which extends the one before: the deepest possible tree."""
    runs = np.arange(1, 5_000)
    groups = best_groups(runs, 1)
    # saves at least the total length of the longer half of the runs
    assert sum(group.saved for group in groups) >= 2_499 * 2_500
