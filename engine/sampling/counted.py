"""The tokens that are counted on the device for penalties, by batch slot.

A row counts the tokens before the token that it samples. Only the device may know the last of these
tokens. A row that verifies drafts samples a token after each draft, and counts the drafts before
it:

    tokens     ... t | d d d            t is counted for good, each d only within this step
    accepted   ... t   d d | s          the next row counts the drafts up to s, and s

Rejected drafts are never counted, since the next row begins before them.
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
    """The number of counted tokens, and the drafts after these tokens, by batch slot."""

    def __init__(self, num_batch_slots: int) -> None:
        self._counts = np.zeros(num_batch_slots, np.int64)
        self._drafts: dict[int, list[int]] = {}

    def restart(self, new: Iterable[NewRequest]) -> None:
        """Reset batch slots of new requests to the counts of `SlotTables.take`."""
        for one in new:
            self._counts[one.batch_slot] = one.num_tokens

    def lacking(self, batch_slots: Ints, ends: Ints) -> Flags:
        """Return which rows have a last token that is not counted.

        The rows' tokens end at `ends`.
        """
        return ends > self._counts[batch_slots]

    def accepted(self, batch_slots: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return batch slots and ids of accepted drafts that are not counted.

        The drafts precede the last tokens of rows that end at `ends`. Raises RuntimeError if such a
        token was no draft.
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
        """Record that all tokens up to the rows' ends are counted, and keep later drafts."""
        drafted = follow_drafts(rows)
        firsts = [row for row, is_drafted in zip(rows, drafted, strict=True) if not is_drafted]
        self._counts[[row.batch_slot for row in firsts]] = [row.end for row in firsts]
        for index in np.flatnonzero(drafted).tolist():
            row, before = rows[index], rows[index - 1]
            drafts = self._drafts[row.batch_slot] if drafted[index - 1] else []
            assert before.batch_slot == row.batch_slot
            self._drafts[row.batch_slot] = [*drafts, _last_id(row)]


def follow_drafts(rows: Sequence[Row]) -> Flags:
    """Return which rows follow a draft: each VERIFY row except the first of its batch slot."""
    follows = np.zeros(len(rows), np.bool_)
    if any(row.kind is VERIFY for row in rows):
        follows[1:] = [
            row.kind is VERIFY and before.kind is VERIFY and row.batch_slot == before.batch_slot
            for before, row in pairwise(rows)
        ]
    return follows


def drafts_before(rows: Sequence[Row], follows: Flags) -> tuple[Ints, Ints]:
    """Return each draft before the rows, as the index of a row and the draft's id."""
    indices, ids, drafts = list[int](), list[int](), list[int]()
    for index in np.flatnonzero(follows).tolist():
        drafts = [*(drafts if follows[index - 1] else []), _last_id(rows[index])]
        indices += [index] * len(drafts)
        ids += drafts
    return np.array(indices, np.int64), np.array(ids, np.int64)


def _last_id(row: Row) -> int:
    return int(np.frombuffer(row.token_ids, np.int32)[row.num_new - 1])
