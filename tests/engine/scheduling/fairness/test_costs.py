"""The costs of work: full for computed tokens, low for cached tokens, higher for sampled tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.scheduling.fairness.costs import (
    CACHED_TOKEN_COST,
    OUTPUT_TOKEN_COST,
    charge_cached,
    charge_decodes,
    charge_row,
)
from engine.scheduling.fairness.queue import FairQueue, QueueLimits
from engine.scheduling.scheduled_rows import ScheduledRow, row_of
from engine.sequences.sequence import Sequence
from tests.engine.rigs.sequences import waiting


class Till(FairQueue):
    """A queue that records each charge."""

    def __init__(self) -> None:
        super().__init__(QueueLimits())
        self.taken: Counter[str] = Counter()
        self.by_class: Counter[str] = Counter()
        self.calls = 0

    def charge(self, sequence: Sequence, cost: float) -> None:
        self.calls += 1
        self.taken[sequence.flow] += cost  # type: ignore[assignment]
        self.by_class[sequence.priority] += cost  # type: ignore[assignment]


def decode(flow: str, *, samples: bool = True) -> ScheduledRow:
    """Return a one-token row. With `samples`, the row ends the prompt, and a token is sampled."""
    sequence = waiting(flow, flow=flow)
    return row_of(sequence, 1, sequence.length - (1 if samples else 2))


def test_a_found_token_costs_a_small_part_of_a_computed_one() -> None:
    till, sequence = Till(), waiting("a", flow="a", prompt_len=80)
    charge_cached(till, sequence, 64)
    assert till.taken == {"a": 64 * CACHED_TOKEN_COST}
    charge_row(till, row_of(sequence, 64))
    assert till.taken == {"a": 64 * CACHED_TOKEN_COST + 64}
    assert 0 < CACHED_TOKEN_COST <= 1 / 8


def test_a_row_that_reaches_the_end_pays_for_what_it_samples() -> None:
    sequence = waiting("a", flow="a", prompt_len=20)
    for start, new, cost in ((0, 8, 8), (8, 11, 11), (8, 12, 11 + OUTPUT_TOKEN_COST)):
        till = Till()
        charge_row(till, row_of(sequence, new, start))
        assert till.taken == {"a": cost}
    assert OUTPUT_TOKEN_COST > 1


def test_decodes_cost_what_their_rows_would_one_by_one() -> None:
    rows = [decode(flow) for flow in "abacaab"] + [decode("c", samples=False), decode("d")]
    together, apart = Till(), Till()
    charge_decodes(together, rows)
    for row in rows:
        charge_row(apart, row)
    assert together.taken == apart.taken
    assert together.taken == {
        "a": 4 * OUTPUT_TOKEN_COST,
        "b": 2 * OUTPUT_TOKEN_COST,
        "c": 1 + OUTPUT_TOKEN_COST,
        "d": OUTPUT_TOKEN_COST,
    }


@pytest.mark.parametrize("rows", [0, 3])
def test_a_flow_is_charged_once_for_all_of_its_decodes(rows: int) -> None:
    till = Till()
    charge_decodes(till, [decode("a") for _ in range(rows)])
    assert till.calls == (rows > 0)


def test_decodes_of_both_classes_are_charged_to_their_own() -> None:
    """Charge each class for its own decodes.

    With one common charge, a tenant would pay for batch work with interactive turns.
    """
    rows = [decode("a") for _ in range(4)]
    for row in rows[1:]:
        row.sequence.priority = "batch"
    till = Till()
    charge_decodes(till, rows)
    assert till.by_class == {"interactive": OUTPUT_TOKEN_COST, "batch": 3 * OUTPUT_TOKEN_COST}
