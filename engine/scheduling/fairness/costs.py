"""The prices of work: a computed token costs 1, a cached token 1/16, an output token 2.

Elsewhere: whose turn it is (`queue.py`).
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

    The next step charges 1 for the sampled token, so only the rest is charged here.
    """
    queue.charge(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.num_samples)


def refund_row(queue: FairQueue, row: ScheduledRow) -> None:
    """Refund the charge for `row`, which was cut from a charged row."""
    queue.refund(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.num_samples)


def charge_more(queue: FairQueue, sequence: Sequence, tokens: int) -> None:
    """Charge a sequence's flow for `tokens` accepted draft tokens."""
    queue.charge(sequence, OUTPUT_TOKEN_COST * tokens)


def charge_decodes(queue: FairQueue, rows: Iterable[ScheduledRow]) -> None:
    """Charge the rows of decodes, with one charge for each flow and priority.

    Each row is charged as one token, because drafts are charged once they are accepted.
    """
    rows_of: dict[tuple[str, Priority], list[ScheduledRow]] = {}
    for row in rows:
        kind = row.sequence.flow, row.sequence.priority
        rows_of.setdefault(kind, []).append(row)
    for alike in rows_of.values():
        sampled = sum(row.samples for row in alike)
        queue.charge(alike[0].sequence, len(alike) + (OUTPUT_TOKEN_COST - 1) * sampled)
