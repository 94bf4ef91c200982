"""Prices of work for a flow: a computed token 1, a cached token 1/16, an output token 2.

Knows: prices. Does not know: credit, or whose turn it is (`queue.py`).
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
    """Charge a row's flow for its computed and its sampled tokens.

    A sampled token is computed in the next step, where it is charged 1: so here the rest.
    """
    queue.charge(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.num_samples)


def refund_row(queue: FairQueue, row: ScheduledRow) -> None:
    """Refund the charge for a part of a row that is not in the step after all."""
    queue.refund(row.sequence, row.num_new + (OUTPUT_TOKEN_COST - 1) * row.num_samples)


def charge_more(queue: FairQueue, sequence: Sequence, tokens: int) -> None:
    """Charge a sequence's flow for the output tokens of a VERIFY row beyond its first."""
    queue.charge(sequence, OUTPUT_TOKEN_COST * tokens)


def charge_decodes(queue: FairQueue, rows: Iterable[ScheduledRow]) -> None:
    """Charge decodes like `charge_row`, once for each flow and priority.

    Of a VERIFY row only the last token: drafts are the engine's choice, charged once accepted.
    """
    rows_of: dict[tuple[str, Priority], list[ScheduledRow]] = {}
    for row in rows:
        kind = row.sequence.flow, row.sequence.priority
        rows_of.setdefault(kind, []).append(row)
    for alike in rows_of.values():
        sampled = sum(row.samples for row in alike)
        queue.charge(alike[0].sequence, len(alike) + (OUTPUT_TOKEN_COST - 1) * sampled)
