"""A step in the making keeps to its budget, whatever is added and taken back."""

from __future__ import annotations

import pytest

from engine.plan import Plan, StepLimits, tokens_to_go
from engine.sequence import Sequence
from tests.engine.sequences import waiting


def prompt(name: str, length: int, done: int = 0) -> Sequence:
    sequence = waiting(name, prompt_len=length)
    sequence.num_computed = done
    return sequence


def planned(plan: Plan) -> list[tuple[str, int, int]]:
    return [(row.sequence.request_id, row.start, row.num_new) for row in plan.rows]


def test_a_row_has_what_its_sequence_has_to_go_as_far_as_the_budget_reaches() -> None:
    plan = Plan(10)
    plan.add(prompt("a", 8, done=2))
    plan.add(prompt("b", 8))
    assert planned(plan) == [("a", 2, 6), ("b", 0, 4)]
    assert plan.budget == 0


def test_a_row_that_is_dropped_gives_its_tokens_back() -> None:
    plan, gone = Plan(10), prompt("gone", 8)
    plan.add(gone)
    plan.add(prompt("stays", 2))
    plan.drop(gone)
    assert planned(plan) == [("stays", 0, 2)]
    assert plan.budget == 8
    plan.drop(gone)  # it has no row any more
    assert plan.budget == 8


def test_a_row_is_topped_up_from_what_is_left() -> None:
    plan, sequence = Plan(4), prompt("a", 12)
    row = plan.add(sequence)
    plan.budget += 5
    more = plan.top_up(row)
    assert (more.start, more.num_new) == (4, 5)
    assert planned(plan) == [("a", 0, 9)]
    assert plan.budget == 0
    plan.budget += 9
    plan.top_up(plan.rows[0])
    assert planned(plan) == [("a", 0, 12)]
    assert plan.budget == 6


def test_decodes_come_before_chunks_and_else_in_order() -> None:
    plan = Plan(100)
    for name, length, done in (("p", 8, 0), ("d", 8, 7), ("q", 8, 6), ("e", 4, 3)):
        plan.add(prompt(name, length, done))
    assert [row.sequence.request_id for row in plan.step().rows] == ["d", "e", "p", "q"]
    assert plan.step().num_tokens == 8 + 1 + 2 + 1


def test_a_sequence_whose_last_token_is_on_its_way_has_nothing_to_go() -> None:
    sequence = prompt("a", 8, done=8)
    sequence.num_pending = 1
    assert tokens_to_go(sequence) == 1
    sequence.num_pending = 4  # it may generate four
    assert tokens_to_go(sequence) == 0


@pytest.mark.parametrize(("tokens", "running", "beside"), [(4, 5, None), (4, 0, None), (4, 4, 0)])
def test_bounds_that_leave_somebody_without_a_token_are_refused(
    tokens: int, running: int, beside: int | None
) -> None:
    with pytest.raises(ValueError, match="token"):
        StepLimits(tokens, running, beside)
    assert StepLimits(4, 4, 1).max_running == 4
