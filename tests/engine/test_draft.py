"""A step in the making keeps to its budget, whatever is added and taken back."""

from __future__ import annotations

import pytest

from engine.draft import Draft, StepLimits, tokens_to_go
from engine.sequence import Sequence
from tests.engine.sequences import waiting


def prompt(name: str, length: int, done: int = 0) -> Sequence:
    sequence = waiting(name, prompt_len=length)
    sequence.num_computed = done
    return sequence


def rows_of(draft: Draft) -> list[tuple[str, int, int]]:
    return [(row.sequence.request_id, row.start, row.num_new) for row in draft.rows]


def test_a_row_has_what_its_sequence_has_to_go_as_far_as_the_budget_reaches() -> None:
    draft = Draft(10)
    draft.add(prompt("a", 8, done=2))
    draft.add(prompt("b", 8))
    assert rows_of(draft) == [("a", 2, 6), ("b", 0, 4)]
    assert draft.budget == 0


def test_a_row_that_is_dropped_gives_its_tokens_back() -> None:
    draft, gone = Draft(10), prompt("gone", 8)
    draft.add(gone)
    draft.add(prompt("stays", 2))
    draft.drop(gone)
    assert rows_of(draft) == [("stays", 0, 2)]
    assert draft.budget == 8
    draft.drop(gone)  # it has no row any more
    assert draft.budget == 8


def test_a_row_is_topped_up_from_what_is_left() -> None:
    draft, sequence = Draft(4), prompt("a", 12)
    row = draft.add(sequence)
    draft.budget += 5
    more = draft.top_up(row)
    assert (more.start, more.num_new) == (4, 5)
    assert rows_of(draft) == [("a", 0, 9)]
    assert draft.budget == 0
    draft.budget += 9
    draft.top_up(draft.rows[0])
    assert rows_of(draft) == [("a", 0, 12)]
    assert draft.budget == 6


def test_decodes_come_before_chunks_and_else_in_order() -> None:
    draft = Draft(100)
    for name, length, done in (("p", 8, 0), ("d", 8, 7), ("q", 8, 6), ("e", 4, 3)):
        draft.add(prompt(name, length, done))
    assert [row.sequence.request_id for row in draft.step().rows] == ["d", "e", "p", "q"]
    assert draft.step().num_tokens == 8 + 1 + 2 + 1


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
