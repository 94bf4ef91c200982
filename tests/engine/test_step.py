"""A row is plain data, and a single function decides which rows belong to prompts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import engine
from engine.scheduling.row_data import step_of, unsent
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow, row_of
from engine.sequences.sequence import Sequence
from engine.step import DECODE, PREFILL, Row, Step, count_decodes, kind_of
from tests.engine.rigs.hand_driven import hold, lease_of, sampling, sequence_of

ENGINE = Path(engine.__file__).parent
PLAIN = (
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.StrType,
    inspect.BytesType,
    inspect.NoneType,
    inspect.EnumType,
    inspect.LiteralType,
)


def parts_of(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and the types that it is composed of."""
    yield kind
    if isinstance(kind, inspect.StructType):
        inner = [field.type for field in kind.fields]
    elif isinstance(kind, inspect.UnionType):
        inner = list(kind.types)
    elif isinstance(kind, inspect.VarTupleType | inspect.FrozenSetType):
        inner = [kind.item_type]
    else:
        inner = []
    for one in inner:
        yield from parts_of(one)


def live(of: Any) -> list[inspect.Type]:
    """List the types within a type that are live objects, not data or frozen records."""
    records = (inspect.UnionType, inspect.VarTupleType, inspect.FrozenSetType)
    return [
        kind
        for kind in parts_of(inspect.type_info(of))
        if not isinstance(kind, PLAIN + records)
        and not (isinstance(kind, inspect.StructType) and kind.cls.__struct_config__.frozen)
    ]


def test_a_step_has_nothing_in_it_but_data() -> None:
    assert live(Step) == []


@pytest.mark.parametrize("of", [ScheduledRow, tuple[Sequence, ...]])
def test_what_holds_a_sequence_is_not_data(of: Any) -> None:
    assert live(of)


COUNTS = ("num_new", "remaining_tokens")


def compares_with_one(source: str) -> list[int]:
    """Return the lines that compare a number of new tokens with 1."""
    if not any(word in source for word in COUNTS):
        return []  # saves the parsing, which takes most of the time
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Constant) and one.value == 1 for one in node.comparators)
        and any(word in ast.unparse(node) for word in COUNTS)
    ]


def test_one_place_says_what_is_a_prompt() -> None:
    found = {
        str(path.relative_to(ENGINE)): lines
        for path in sorted(ENGINE.rglob("*.py"))
        if (lines := compares_with_one(path.read_text()))
    }
    assert list(found) == ["step.py"]
    assert len(found["step.py"]) == 1


@pytest.mark.parametrize(
    "line", ["row.num_new > 1", "num_new == 1", "[r for r in s if remaining_tokens(r) > 1]"]
)
def test_another_place_would_be_found(line: str) -> None:
    assert compares_with_one(line) == [1]
    assert compares_with_one(line.replace("1", "0")) == []


def test_rows_of_one_token_are_decodes_and_come_first() -> None:
    assert [kind_of(count) for count in (1, 2, 300)] == [DECODE, PREFILL, PREFILL]
    lengths = [5, 1, 3, 1]
    sequences = [sequence_of([7] * 9, block_ids=[number]) for number in range(4)]
    scheduled = step_of(row_of(one, n) for one, n in zip(sequences, lengths, strict=True))
    rows = scheduled.step.rows
    assert [row.num_new for row in rows] == [1, 1, 5, 3]
    assert [row.sequence for row in scheduled.rows] == [sequences[at] for at in (1, 3, 0, 2)]
    assert [count_decodes(rows[first:]) for first in range(5)] == [2, 1, 0, 0, 0]
    assert scheduled.step.num_tokens == sum(lengths)


def written(step: Step) -> Step:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step)


def next_row(sequence: Sequence) -> tuple[Scheduled, Row]:
    """Return the step of a sequence's uncomputed tokens, and its row after serialisation."""
    scheduled = step_of([row_of(sequence, sequence.length - sequence.num_computed)])
    (row,) = written(scheduled.step).rows
    assert row == scheduled.step.rows[0]
    return scheduled, row


def blocks(row: Row) -> tuple[int, list[int]]:
    return row.first_block, list(memoryview(row.block_ids).cast("i"))


def test_a_row_brings_what_its_runner_has_not_been_sent() -> None:
    sequence = sequence_of([7] * 6, sampling(4, repetition_penalty=1.2), block_ids=[5, 9])
    _, first = next_row(sequence)
    assert blocks(first) == (0, [5, 9])
    assert first.new is not None
    assert memoryview(first.new.prompt_ids).cast("i").tolist() == [7] * 6
    sequence.num_computed, sequence.num_pending = 6, 1
    _, second = next_row(sequence)
    assert (second.is_pending, second.block_ids, second.new) == (True, b"", None)
    assert second.token_ids == bytes(4)
    sequence.lease = lease_of([5, 9, 2])
    assert blocks(next_row(sequence)[1]) == (2, [2])


def test_a_row_that_does_not_sample_says_nothing_of_sampling() -> None:
    sequence = sequence_of([7] * 6, block_ids=[5, 9])
    (row,) = step_of([row_of(sequence, 4)]).step.rows
    assert row.new is None
    sequence.num_computed = 4
    assert next_row(sequence)[1].new is not None


def test_with_another_lease_all_is_sent_again() -> None:
    sequence = sequence_of([7] * 6, block_ids=[5, 9])
    _, before = next_row(sequence)
    sequence.let_go()
    hold(sequence, [3])
    _, after = next_row(sequence)
    assert blocks(after) == (0, [3])
    assert after.new == before.new
    assert after.lease_id != before.lease_id


def test_what_a_failed_launch_brought_is_sent_again_and_no_more() -> None:
    sequence = sequence_of([7] * 6, block_ids=[5, 9])
    scheduled, lost = next_row(sequence)
    unsent(scheduled)
    assert next_row(sequence)[1] == lost
    sequence.lease = lease_of([5, 9, 2])
    scheduled, lost = next_row(sequence)
    unsent(scheduled)
    assert blocks(next_row(sequence)[1]) == blocks(lost) == (2, [2])
    assert next_row(sequence)[1].block_ids == b""
