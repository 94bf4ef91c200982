"""A step under construction stays within its budget, whatever rows are added and dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.scheduling.scheduled_rows import remaining_tokens
from engine.scheduling.step_builder import StepBuilder, StepLimits
from engine.sequences.sequence import Sequence
from engine.step import count_decodes
from tests.doubles.constraints import Allows
from tests.engine.rigs.hand_driven import hold
from tests.engine.rigs.sequences import waiting


def prompt(name: str, length: int, done: int = 0) -> Sequence:
    sequence = waiting(name, prompt_len=length)
    sequence.num_computed = done
    return sequence


def started(sequence: Sequence) -> Sequence:
    hold(sequence, [1, 2])
    sequence.batch_slot = 0
    return sequence


def rows_of(builder: StepBuilder) -> list[tuple[str, int, int]]:
    return [(row.sequence.request_id, row.start, row.num_new) for row in builder.rows]


def test_a_row_has_what_its_sequence_has_to_go_as_far_as_the_budget_reaches() -> None:
    builder = StepBuilder(10)
    builder.add(prompt("a", 8, done=2))
    builder.add(prompt("b", 8))
    assert rows_of(builder) == [("a", 2, 6), ("b", 0, 4)]
    assert builder.budget == 0


@pytest.mark.parametrize("is_constrained", [False, True])
def test_a_token_on_its_way_is_to_go_also_where_it_decides_what_may_follow(
    is_constrained: bool,
) -> None:
    constraint = Allows([1], 64) if is_constrained else None
    sequence = replace(prompt("a", 8), constraint=constraint)
    assert remaining_tokens(sequence) == 8
    sequence.num_computed, sequence.num_pending = 8, 1
    assert remaining_tokens(sequence) == 1
    sequence.append(1)
    sequence.num_pending = 0
    assert remaining_tokens(sequence) == 1


def test_a_row_that_is_dropped_gives_its_tokens_back() -> None:
    builder, gone = StepBuilder(10), prompt("gone", 8)
    builder.add(gone)
    builder.add(prompt("stays", 2))
    builder.drop(gone)
    assert rows_of(builder) == [("stays", 0, 2)]
    assert builder.budget == 8
    builder.drop(gone)  # the sequence no longer has a row
    assert builder.budget == 8


def test_rows_of_prompts_are_cut_from_the_last_and_each_keeps_a_token() -> None:
    builder = StepBuilder(100)
    for name, length, done in (("d", 8, 7), ("p", 8, 2), ("q", 8, 0), ("r", 4, 0)):
        builder.add(prompt(name, length, done))
    assert builder.cut(18) == []
    rests = builder.cut(9)
    assert rows_of(builder) == [("d", 7, 1), ("p", 2, 6), ("q", 0, 2), ("r", 0, 1)]
    told = [(rest.sequence.request_id, rest.start, rest.end) for rest in rests]
    assert told == [("r", 1, 4), ("q", 2, 8)]
    assert [rest.samples for rest in rests] == [True, True]
    assert not any(row.samples for row in builder.rows[2:])
    assert builder.budget == 100 - 10
    builder.cut(1)
    assert rows_of(builder)[1:] == [("p", 2, 1), ("q", 0, 1), ("r", 0, 1)]


def test_decodes_come_before_chunks_and_else_in_order() -> None:
    builder = StepBuilder(100)
    for name, length, done in (("p", 8, 0), ("d", 8, 7), ("q", 8, 6), ("e", 4, 3)):
        builder.add(started(prompt(name, length, done)))
    scheduled = builder.step()
    assert [row.sequence.request_id for row in scheduled.rows] == ["d", "e", "p", "q"]
    assert scheduled.step.num_tokens == 8 + 1 + 2 + 1
    assert count_decodes(scheduled.step.rows) == 2


def test_a_sequence_whose_last_token_is_on_its_way_has_nothing_to_go() -> None:
    sequence = prompt("a", 8, done=8)
    sequence.num_pending = 1
    assert remaining_tokens(sequence) == 1
    sequence.num_pending = 4  # the sequence may generate four tokens
    assert remaining_tokens(sequence) == 0


@pytest.mark.parametrize(("tokens", "running", "seconds"), [(4, 5, None), (4, 0, None), (4, 4, 0)])
def test_bounds_that_leave_somebody_without_a_token_are_refused(
    tokens: int, running: int, seconds: float | None
) -> None:
    with pytest.raises(ValueError, match="max_"):
        StepLimits(tokens, running, seconds)
    with pytest.raises(ValueError, match="target_itl_s"):
        StepLimits(4, 4, target_itl_s=0.0)
    assert StepLimits(4, 4, 1.0).max_running == 4
