"""The tokens of each batch slot that are counted on the device, for penalties.

A row counts the tokens before the one that it samples. The last of them may be known to the device
alone. A row that verifies drafts samples after each, and counts those before:

    tokens     ... t | d d d            t is counted for good, each d only within this step
    accepted   ... t   d d | s          the next row: its drafts up to s are counted, and s

Rejected drafts are never counted: the next row begins before them.

Knows: rows, positions. Does not know: tables (`tables.py`), or which rows have penalties.
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
    """The number of counted tokens by batch slot, and the drafts after them. One owner thread."""

    def __init__(self, num_batch_slots: int) -> None:
        self._counts = np.zeros(num_batch_slots, np.int64)
        self._drafts: dict[int, list[int]] = {}  # by batch slot, after the counted tokens

    def restart(self, new: Iterable[NewRequest]) -> None:
        """Reset batch slots of new requests to the tokens that `SlotTables.take` counts."""
        for one in new:
            self._counts[one.batch_slot] = one.num_tokens

    def lacking(self, batch_slots: Ints, ends: Ints) -> Flags:
        """Return which rows, up to `ends`, have a last token that is not counted."""
        return ends > self._counts[batch_slots]

    def accepted(self, batch_slots: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return batch slots and ids of accepted drafts that are not counted.

        They are before the last tokens of rows up to `ends`. Raises RuntimeError for tokens that
        were no drafts.
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
        """Record that all tokens up to the rows' ends are counted, without drafts."""
        drafted = follow_drafts(rows)
        firsts = [row for row, is_drafted in zip(rows, drafted, strict=True) if not is_drafted]
        self._counts[[row.batch_slot for row in firsts]] = [row.end for row in firsts]
        for index in np.flatnonzero(drafted).tolist():
            row, before = rows[index], rows[index - 1]
            drafts = self._drafts[row.batch_slot] if drafted[index - 1] else []
            assert before.batch_slot == row.batch_slot
            self._drafts[row.batch_slot] = [*drafts, _last_id(row)]


def follow_drafts(rows: Sequence[Row]) -> Flags:
    """Return which rows, one for each sampled token, follow a draft: VERIFY rows after a first."""
    follows = np.zeros(len(rows), np.bool_)
    if any(row.kind is VERIFY for row in rows):
        follows[1:] = [
            row.kind is VERIFY and before.kind is VERIFY and row.batch_slot == before.batch_slot
            for before, row in pairwise(rows)
        ]
    return follows


def drafts_before(rows: Sequence[Row], follows: Flags) -> tuple[Ints, Ints]:
    """Return the indices of the rows that follow drafts, once for each, and the drafts' ids."""
    indices, ids, drafts = list[int](), list[int](), list[int]()
    for index in np.flatnonzero(follows).tolist():
        drafts = [*(drafts if follows[index - 1] else []), _last_id(rows[index])]
        indices += [index] * len(drafts)
        ids += drafts
    return np.array(indices, np.int64), np.array(ids, np.int64)


def _last_id(row: Row) -> int:
    """Return the last token of a row, up to its end."""
    return int(np.frombuffer(row.token_ids, np.int32)[row.num_new - 1])
