"""The prices of work: 1 for a computed token, 1/16 for a cached token, 2 for an output token.

Elsewhere: the order of flows (`queue.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.link.messages import Priority
from engine.scheduling.fairness.queue import FairQueue
from engine.scheduling.scheduled_rows import ScheduledRow
from engine.sequences.sequence import Sequence

CACHED_TOKEN_COST = 1 / 16
OUTPUT_TOKEN_COST = 2.0


def charge_cached(queue: FairQueue, sequence: Sequence, tokens: int) -> None:
    """Charge a sequence's flow for `tokens` cached tokens."""
    queue.charge(sequence, CACHED_TOKEN_COST * tokens)


def charge_row(queue: FairQueue, row: ScheduledRow) -> None:
    """Charge a row's flow for the row's computed and sampled tokens.

    Of the 2 for a sampled token, the next step will charge 1, when it computes the token. Only the
    other 1 is charged here.
    """
    queue.charge(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.num_samples)


def refund_row(queue: FairQueue, row: ScheduledRow) -> None:
    """Refund the charge for `row`, a part that was cut off from a charged row."""
    queue.refund(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.num_samples)


def charge_more(queue: FairQueue, sequence: Sequence, tokens: int) -> None:
    """Charge a sequence's flow for `tokens` accepted draft tokens."""
    queue.charge(sequence, OUTPUT_TOKEN_COST * tokens)


def charge_decodes(queue: FairQueue, rows: Iterable[ScheduledRow]) -> None:
    """Charge the rows of decodes. A flow gets one charge per priority.

    Each row is charged as one token, because drafts are charged only when they are accepted.
    """
    rows_of: dict[tuple[str, Priority], list[ScheduledRow]] = {}
    for row in rows:
        kind = row.sequence.flow, row.sequence.priority
        rows_of.setdefault(kind, []).append(row)
    for alike in rows_of.values():
        sampled = sum(row.samples for row in alike)
        queue.charge(alike[0].sequence, len(alike) + (OUTPUT_TOKEN_COST - 1) * sampled)
