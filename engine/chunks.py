"""Rows for prompts that are being computed: whose tokens come first, and what is kept for others.

    budget | flows with few requests first ........ | the oldest's | kept for newcomers |

Knows: the order of chunks, and parts of a step's budget. Does not know: who starts, seats or
blocks (`scheduler.py`), or visits (`visitors.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import takewhile

from engine.charges import charge_row
from engine.crowd import fewest_first, is_flood
from engine.draft import Draft, tokens_to_go
from engine.queue import FairQueue
from engine.sequence import Sequence
from engine.step import Row

# One in this many of the tokens for chunks is the oldest sequence's, whoever goes first: else an
# endless run of flows with few requests would starve it.
OLDESTS_PART = 4


class Chunks:
    """Gives sequences that run tokens of a step, and charges for them."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue

    def add(self, draft: Draft, sequences: Iterable[Sequence]) -> list[Row]:
        """Rows for prompts that are not computed yet and have no row, as far as the budget goes."""
        rows = []
        for sequence in _without_row(draft, sequences):
            if draft.budget:
                rows.append(draft.add(sequence))
                charge_row(self._queue, rows[-1])
        return rows

    def go_on(self, draft: Draft, running: Collection[Sequence]) -> list[Row]:
        """Rows for prompts of running sequences, whose blocks were leased at admission.

        `running` is in order of arrival. Half of the budget is kept while flows wait that have no
        chunk here: `top_up` gives it out if none of them starts.
        """
        chunks = _without_row(draft, running)
        if not chunks:
            return []
        kept = draft.budget // 2 if self._queue.has_newcomers({one.flow for one in chunks}) else 0
        draft.budget -= kept
        ordered = fewest_first(chunks, running, self._queue.num_waiting)
        oldest = chunks[0]
        part = _part_of(oldest, ordered, draft.budget)
        draft.budget -= part
        rows = self.add(draft, ordered)
        draft.budget += part
        rows += self.add(draft, [oldest])
        draft.budget += kept
        return rows

    def top_up(self, draft: Draft, rows: Iterable[Row]) -> None:
        """Give what is left of the budget to these rows."""
        for row in rows:
            is_there = row in draft.rows  # its sequence was not preempted for a newcomer meanwhile
            if is_there and draft.budget and row.num_new < tokens_to_go(row.sequence):
                charge_row(self._queue, draft.top_up(row))

    def are_a_flood(self, running: Iterable[Sequence]) -> bool:
        """Whether the prompts to be computed, begun and waiting, are a flood (`crowd.is_flood`)."""
        begun = [one.flow for one in running if tokens_to_go(one) > 1]
        flows = max(len(set(begun)), self._queue.num_flows)
        return is_flood(flows, len(begun) + len(self._queue))

    def left(self, draft: Draft, sequences: Iterable[Sequence]) -> int:
        """Tokens of prompts that were admitted and have no row in `draft`."""
        return sum(tokens_to_go(one) for one in _without_row(draft, sequences))

    def wait(self, running: Iterable[Sequence], *, besides: Iterable[Sequence]) -> bool:
        """Whether a sequence other than `besides` has a prompt to be computed, begun or waiting."""
        known = {id(one) for one in besides}
        begun = (tokens_to_go(one) > 1 and id(one) not in known for one in running)
        return len(self._queue) > 0 or any(begun)


def _part_of(oldest: Sequence, ordered: Iterable[Sequence], budget: int) -> int:
    """The tokens that are reserved for the oldest, 0 where it gets as many anyway."""
    before = sum(tokens_to_go(one) for one in takewhile(lambda one: one is not oldest, ordered))
    part = budget // OLDESTS_PART
    return part if before > budget - part else 0


def _without_row(draft: Draft, sequences: Iterable[Sequence]) -> list[Sequence]:
    """Those of `sequences` that have several tokens to compute and no row in `draft`."""
    given = {id(row.sequence) for row in draft.rows}
    return [one for one in sequences if tokens_to_go(one) > 1 and id(one) not in given]
