"""The leases sorted by their blocks, so that leases with a common prefix are neighbours.

    blocks   1 2 3 4 | 1 2 3 9 | 1 2 5 | 7 8        each lease's blocks, from position 0
    runs          3         2       0                number of blocks that neighbours have in common

A block never changes its place in a lease. Two leases share only blocks that were in the tree when
the later lease was taken. A lease is therefore compared with its neighbours only once. Comparing
block ids suffices, because a shared block has the same id in both leases.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import KeysView
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from prefix_cache.tree.edge import common_prefix


class LeaseGroup(NamedTuple):
    """The leases that begin with the same `run` blocks.

    `members` are the leases' indices in the order.
    """

    run: int
    members: list[int]

    @property
    def saved(self) -> int:
        """The number of block reads that the group saves."""
        return (len(self.members) - 1) * self.run


class PrefixOrder:
    """The sorted `leases`, and the number of blocks that each shares with the next lease."""

    def __init__(self) -> None:
        self.leases: list[int] = []
        self._keys: list[bytes] = []  # sorted block ids as bytes, a key for each lease
        self._runs: list[int] = []
        self._key_of: dict[int, bytes] = {}

    @property
    def known(self) -> KeysView[int]:
        """The leases, as a set."""
        return self._key_of.keys()

    def add(self, lease: int, blocks: npt.NDArray[np.int32]) -> None:
        """Insert a new lease, whose first blocks are `blocks` (n,) int32."""
        key = blocks.tobytes()
        at = bisect(self._keys, key)
        self._keys.insert(at, key)
        self.leases.insert(at, lease)
        self._key_of[lease] = key
        around = self._keys[max(at - 1, 0) : at + 2]
        self._runs[max(at - 1, 0) : at] = [_common(a, b) for a, b in pairwise(around)]

    def remove(self, lease: int) -> None:
        """Remove a lease."""
        at = self._place(lease)
        del self._keys[at], self.leases[at], self._key_of[lease]
        around = self._runs[max(at - 1, 0) : at + 1]
        inside = 0 < at < len(self.leases)
        self._runs[max(at - 1, 0) : at + 1] = [min(around)] if inside else []

    def beside(self, lease: int) -> list[tuple[int, int]]:
        """Return a lease's neighbours, each with the number of blocks that both have in common."""
        at = self._place(lease)
        before = [(self.leases[at - 1], self._runs[at - 1])] if at else []
        after = [(self.leases[at + 1], self._runs[at])] if at + 1 < len(self.leases) else []
        return before + after

    def groups(self, least_run: int) -> list[LeaseGroup]:
        """Find disjoint groups that save many reads and share at least `least_run` blocks."""
        return best_groups(np.array(self._runs, np.int64), max(least_run, 1))

    def _place(self, lease: int) -> int:
        at = bisect(self._keys, self._key_of[lease]) - 1
        while self.leases[at] != lease:
            at -= 1
        return at


def best_groups(runs: npt.NDArray[np.int64], least_run: int) -> list[LeaseGroup]:
    """Group neighbouring leases so that many block reads are saved.

    `runs` are the numbers of blocks that leases have in common with the next lease.

    The runs define a tree whose leaves are the leases. Nodes are visited from the leaves to the
    root. Each node proposes one group of its leaves that are in no group yet. Members of groups
    below join if they save more reads in the proposed group. The node makes the group only if this
    increases the total of saved reads. The result is seldom worse than the optimum.
    """
    runs = np.where(runs >= least_run, runs, 0)
    changes = np.flatnonzero(runs != np.concatenate(([0], runs[:-1]))).tolist()
    found: list[LeaseGroup] = []
    nodes: list[_SharedRun] = []
    seen = 0
    for last, run in zip([*changes, len(runs)], [*runs[changes].tolist(), 0], strict=True):
        if nodes:  # leases before `last` have the same run, so they are leaves of one node
            nodes[-1].leaves += range(seen, last)
        done = _SharedRun(run, [last], [])
        while nodes and nodes[-1].run > run:
            done = nodes.pop().closed(done)
        if nodes and nodes[-1].run == run:
            nodes[-1].take(done)
        elif run:
            nodes.append(_SharedRun(run, done.leaves, done.groups))
        else:
            found += done.groups
        seen = last + 1
    return found


@dataclass(slots=True)
class _SharedRun:
    """A node of the tree: its number of common blocks, ungrouped leases, and the groups below."""

    run: int
    leaves: list[int]
    groups: list[LeaseGroup]

    def take(self, child: _SharedRun) -> None:
        self.leaves += child.leaves
        self.groups += child.groups

    def closed(self, last: _SharedRun) -> _SharedRun:
        self.take(last)
        taken = [group for group in self.groups if len(group.members) * self.run > group.saved]
        members = self.leaves + [member for group in taken for member in group.members]
        own = LeaseGroup(self.run, members)
        if len(members) > 1 and own.saved >= sum(group.saved for group in taken):
            kept = [group for group in self.groups if len(group.members) * self.run <= group.saved]
            return _SharedRun(self.run, [], [*kept, own])
        return self


def _common(one: bytes, other: bytes) -> int:
    return common_prefix(np.frombuffer(one, np.int32), np.frombuffer(other, np.int32))
