"""What work costs in a flow's credit: a computed token 1, a cached one little, one sampled more.

Knows: prices. Does not know: credit, or whose turn it is (`queue.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.messages import Priority
from engine.queue import FairQueue
from engine.sequence import Sequence
from engine.step import Row

CACHED_TOKEN_COST = 1 / 16
OUTPUT_TOKEN_COST = 2.0


def charge_cached(queue: FairQueue, sequence: Sequence, tokens: int) -> None:
    """For tokens that a sequence found."""
    queue.charge(sequence, CACHED_TOKEN_COST * tokens)


def charge_row(queue: FairQueue, row: Row) -> None:
    """Computed tokens in full; the token that the row will sample by its own price."""
    queue.charge(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.samples)


def charge_decodes(queue: FairQueue, rows: Iterable[Row]) -> None:
    """The same for rows of one token, all of a flow's of one class at a time."""
    rows_of: dict[tuple[str, Priority], list[Row]] = {}
    for row in rows:
        kind = row.sequence.flow, row.sequence.priority
        rows_of.setdefault(kind, []).append(row)
    for alike in rows_of.values():
        sampled = sum(row.samples for row in alike)
        queue.charge(alike[0].sequence, len(alike) + (OUTPUT_TOKEN_COST - 1) * sampled)
