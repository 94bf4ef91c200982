"""The bookkeeping of tokens that the device has counted for penalties, by batch slot.

Before a row samples a token, all earlier tokens must be counted. Only the device may know the last
of them. A row that verifies drafts samples a token after each draft, and counts the drafts before
that token:

    tokens     ... t | d d d            t is counted permanently, each draft d only in this step
    accepted   ... t   d d | s          the next row counts the accepted drafts and s

Rejected drafts are never counted permanently, because the next row begins before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engine.step import VERIFY, NewRequest, Row

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class CountedTokens:
    """The number of counted tokens in each batch slot, and the drafts after them."""

    def __init__(self, num_batch_slots: int) -> None:
        self._counts = np.zeros(num_batch_slots, np.int64)
        self._drafts: dict[int, list[int]] = {}

    def restart(self, new: Iterable[NewRequest]) -> None:
        """Reset the batch slots of new requests: `SlotTables.take` has counted their tokens."""
        for one in new:
            self._counts[one.batch_slot] = one.num_tokens

    def lacking(self, batch_slots: Ints, ends: Ints) -> Flags:
        """Return which rows have a last token that is not counted yet.

        `ends` are the positions after the rows' last tokens.
        """
        return ends > self._counts[batch_slots]

    def accepted(self, batch_slots: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return the batch slots and token ids of accepted drafts that are not counted yet.

        These are the tokens between the counted tokens and the last token of each row. `ends` are
        the positions after the rows' last tokens. Raises RuntimeError if one of the tokens was not
        a draft.
        """
        missing = ends - 1 - self._counts[batch_slots]
        slots, ids = list[int](), list[int]()
        for index in np.flatnonzero(missing > 0).tolist():
            slot, count = int(batch_slots[index]), int(missing[index])
            drafts = self._drafts.get(slot, [])[:count]
            if len(drafts) < count:
                raise RuntimeError(f"{count - len(drafts)} tokens of batch slot {slot} are missing")
            slots += [slot] * count
            ids += drafts
        return np.array(slots, np.int64), np.array(ids, np.int64)

    def launched(self, rows: Sequence[Row]) -> None:
        """Record that all tokens up to the rows' ends are counted. Remember later drafts."""
        drafted = follow_drafts(rows)
        firsts = [row for row, is_drafted in zip(rows, drafted, strict=True) if not is_drafted]
        self._counts[[row.batch_slot for row in firsts]] = [row.end for row in firsts]
        for index in np.flatnonzero(drafted).tolist():
            row, before = rows[index], rows[index - 1]
            drafts = self._drafts[row.batch_slot] if drafted[index - 1] else []
            assert before.batch_slot == row.batch_slot
            self._drafts[row.batch_slot] = [*drafts, _last_id(row)]


def follow_drafts(rows: Sequence[Row]) -> Flags:
    """Return which rows come after a draft: each VERIFY row but the first of its batch slot."""
    follows = np.zeros(len(rows), np.bool_)
    if any(row.kind is VERIFY for row in rows):
        follows[1:] = [
            row.kind is VERIFY and before.kind is VERIFY and row.batch_slot == before.batch_slot
            for before, row in pairwise(rows)
        ]
    return follows


def drafts_before(rows: Sequence[Row], follows: Flags) -> tuple[Ints, Ints]:
    """Return the drafts before each row, as pairs of arrays: (index of the row, draft's id)."""
    at = np.flatnonzero(follows)
    firsts = np.maximum.accumulate(np.where(follows, 0, np.arange(len(rows))))[at]
    counts = at - firsts
    ids = np.array([_last_id(rows[index]) for index in at.tolist()], np.int64)
    begins = np.arange(len(at)) + 1 - counts  # place in `ids` of the first draft before each row
    behind = np.cumsum(counts) - counts  # number of pairs of the rows before
    places = np.arange(counts.sum()) + np.repeat(begins - behind, counts)
    return np.repeat(at, counts), ids[places]


def _last_id(row: Row) -> int:
    return int(np.frombuffer(row.token_ids, np.int32)[row.num_new - 1])
