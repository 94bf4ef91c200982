"""The groups of a step's decode rows with a common prefix: a group reads the prefix's KV once.

    rows in the step   0  1  2  3  4  5
    in batch order     1  4  5 | 0  3 | 2        groups first, then rows that share nothing
    shared keys        4,096     1,280  0

Rows are identified by their leases, which outlive steps. A row that ends is removed from its group.
A new row enters its neighbour's group. After several such changes, the groups are chosen again.
Groups are not nested, because nested groups were measured to be slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.execution.block_tables import BlockTables
from engine.execution.prefix_order import PrefixOrder
from engine.step import Row
from kernels.attention.tuning import worth_sharing

Ints = npt.NDArray[np.int32]

CHANGED_PART = 4  # groups are chosen again after 1 in 4 rows has changed
MIN_GROUP_ROWS = 4  # smallest `most_rows` for which `most_groups` is a valid bound


@dataclass(frozen=True, slots=True)
class SharingRule:
    """The condition for shared reads. `token_bytes` is the size of a token's KV in one layer."""

    block_size: int
    token_bytes: int
    least_tokens: int  # shortest shared prefix of a group, in tokens
    most_rows: int  # maximum number of rows in a group; larger groups are split

    def __post_init__(self) -> None:
        if self.most_rows < MIN_GROUP_ROWS:
            raise ValueError(f"groups of {self.most_rows} rows are too small to share")

    @property
    def least_blocks(self) -> int:
        """The minimum number of shared blocks, which hold `least_tokens`."""
        return -(-self.least_tokens // self.block_size)

    def pays(self, groups: Iterable[_Members]) -> bool:
        """Return whether the groups save more time than their extra launch takes."""
        saved = sum((len(group.leases) - 1) * group.run for group in groups)
        return self.saves_enough(saved * self.block_size)

    def saves_enough(self, saved_tokens: int) -> bool:
        """Return whether `saved_tokens` fewer reads save more time than the extra launch takes."""
        return worth_sharing(saved_tokens, self.token_bytes)


@dataclass(frozen=True, slots=True)
class Sharing:
    """The order of the decode rows of one step. Place p in the batch has the row `order[p]`.

    S groups come first. `starts` (S + 1,) int32 has the first place of each group, then the end of
    the last group. `key_ends` (S,) int32 has the number of tokens that each group reads together.
    The rows after the groups share nothing.
    """

    order: npt.NDArray[np.int64]
    starts: Ints
    key_ends: Ints
    most_rows: int
    _made: dict[int, dict[str, Ints]] = field(default_factory=dict)

    def fields(self, num_rows: int) -> dict[str, Ints]:
        """Return the arrays of a `SharedPrefix` for `num_rows` decode rows, with padding last.

        The kernel requires every row to be in a group. Rows that share nothing, and padding, are in
        groups without shared keys.
        """
        if num_rows not in self._made:
            self._made[num_rows] = self._fields(num_rows)
        return self._made[num_rows]

    def _fields(self, num_rows: int) -> dict[str, Ints]:
        groups, shared = most_groups(num_rows), int(self.starts[-1])
        alone = np.arange(shared, num_rows, self.most_rows, dtype=np.int32)
        starts = np.full(groups + 1, num_rows, np.int32)
        starts[: len(self.key_ends)] = self.starts[:-1]
        starts[len(self.key_ends) : len(self.key_ends) + len(alone)] = alone
        key_ends = np.zeros(groups, np.int32)
        key_ends[: len(self.key_ends)] = self.key_ends
        own_starts = self.own_starts(num_rows)
        return {"group_starts": starts, "key_ends": key_ends, "own_starts": own_starts}

    def own_starts(self, num_rows: int) -> Ints:
        """Return the number of shared tokens of each of `num_rows` decode rows, in batch order."""
        own_starts = np.zeros(num_rows, np.int32)
        own_starts[: self.starts[-1]] = np.repeat(self.key_ends, np.diff(self.starts))
        return own_starts


def nobody_shares(most_rows: int) -> Sharing:
    """Make a `Sharing` without groups, for a step that has only padding."""
    nothing = np.zeros(0, np.int32)
    return Sharing(nothing.astype(np.int64), np.zeros(1, np.int32), nothing, most_rows)


def most_groups(num_rows: int) -> int:
    """Return the maximum number of groups that `num_rows` decode rows can form.

    A group that shares has at least two rows, and at most `most_rows`. Rows that share nothing fill
    one more group. The number of groups is therefore at most half the number of rows, plus 1.
    """
    return num_rows // 2 + 1


@dataclass(slots=True, eq=False)
class _Members:
    """The leases of one group. Their first `run` blocks are the same."""

    run: int
    leases: list[int]


class SharedPrefixes:
    """The groups of decode rows, updated from step to step. Used by one thread only."""

    def __init__(self, rule: SharingRule) -> None:
        self.rule = rule
        self._order = PrefixOrder()
        self._group_of: dict[int, _Members] = {}
        self._changes = 0
        self._leases: list[int] = []
        self._sharing: Sharing | None = None

    def find(self, decodes: Sequence[Row], tables: BlockTables) -> Sharing | None:
        """Order the step's decode rows for shared reads, or return None if that is slower."""
        if len(decodes) < 2:
            return None
        leases = [row.lease_id for row in decodes]
        if leases != self._leases:
            self._leases = leases
            place = {lease: index for index, lease in enumerate(leases)}
            self._update(decodes, place, tables)
            self._sharing = self._arranged(place)
        return self._sharing

    def _update(self, decodes: Sequence[Row], place: dict[int, int], tables: BlockTables) -> None:
        gone = self._order.known - place.keys()
        new = sorted(place.keys() - self._order.known, key=place.__getitem__)
        for lease in gone:
            self._order.remove(lease)
        for lease in new:
            row = decodes[place[lease]]
            self._order.add(lease, tables.host[row.batch_slot, : row.start // self.rule.block_size])
        self._changes += len(gone) + len(new)
        if self._changes * CHANGED_PART > len(place):
            self._choose()
        else:
            for lease in gone:
                self._leave(lease)
            for lease in new:
                self._join(lease)

    def _choose(self) -> None:
        leases, self._group_of, self._changes = self._order.leases, {}, 0
        for run, members in self._order.groups(self.rule.least_blocks):
            group = _Members(run, [leases[member] for member in members])
            self._group_of.update(dict.fromkeys(group.leases, group))

    def _leave(self, lease: int) -> None:
        group = self._group_of.pop(lease, None)
        if group is not None:
            group.leases.remove(lease)
            if len(group.leases) == 1:
                del self._group_of[group.leases[0]]

    def _join(self, lease: int) -> None:
        for neighbour, run in self._order.beside(lease):
            group = self._group_of.get(neighbour)
            if group is not None and group.run <= run:
                group.leases.append(lease)
                self._group_of[lease] = group
                return

    def _arranged(self, place: dict[int, int]) -> Sharing | None:
        groups = dict.fromkeys(self._group_of.values())
        if not self.rule.pays(groups):
            return None
        starts, key_ends, order = [0], list[int](), list[int]()
        for group in groups:
            members = len(group.leases)
            parts = -(-members // self.rule.most_rows)
            starts += [len(order) + members * part // parts for part in range(1, parts + 1)]
            key_ends += [group.run * self.rule.block_size] * parts
            order += [place[lease] for lease in group.leases]
        order += [row for lease, row in place.items() if lease not in self._group_of]
        return Sharing(
            order=np.array(order, np.int64),
            starts=np.array(starts, np.int32),
            key_ends=np.array(key_ends, np.int32),
            most_rows=self.rule.most_rows,
        )
