"""A run of tokens of one sequence has the bits of single tokens, and writes one state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kernels.ops import Ops
from tests.kernels.cases import relative_error
from tests.kernels.recurrence.layers import Batch, DeltaLayer, StateLayer, make_batch
from tests.kernels.recurrence.test_states import BOUND, EACH, run

# For each run: its number of tokens, the tokens before it, and the tokens after which its state is
# written.
RUNS = [(1, 4, 1), (5, 0, 3), (2, 7, 2), (1, 0, 1), (9, 3, 1), (4, 6, 4)]


def with_runs(layer: StateLayer, runs: Sequence[tuple[int, int, int]]) -> Batch:
    """Make a batch of decodes in runs, then padding and a prompt."""
    rows = [(1, before + at + 1) for tokens, before, _ in runs for at in range(tokens)]
    batch = make_batch(layer, [*rows, (1, 0), (6, 8)], in_place=False)
    own, first = batch.rows, 0
    for tokens, _, kept in runs:
        after = slice(first, first + tokens)
        own.runs[after] = -torch.arange(tokens, dtype=torch.int32)
        own.runs[first], own.kept[first] = tokens, kept
        own.read_slots[after] = own.read_slots[first].item()
        own.write_slots[after] = own.write_slots[first].item()
        first += tokens
    return batch


@EACH
def test_a_run_is_computed_in_order_and_its_state_written_where_it_is_asked_for(
    ops: Ops, layer: StateLayer
) -> None:
    batch = with_runs(layer, RUNS)
    got, after = run(layer, ops, batch)
    first = 0
    for tokens, _, kept in RUNS:
        here = slice(first, first + tokens)
        inputs = [each[here] for each in batch.inputs]
        outputs, _ = layer.truth(inputs, batch.before(first))
        _, state = layer.truth([each[:kept] for each in inputs], batch.before(first))
        assert relative_error(got[here], outputs) < BOUND
        assert relative_error(after[int(batch.rows.write_slots[first])], state) < BOUND
        first += tokens
    assert not got[first].any(), "padding"
    rest, state = layer.truth([each[first + 1 :] for each in batch.inputs], batch.before(first + 1))
    assert relative_error(got[first + 1 :], rest) < BOUND
    assert relative_error(after[int(batch.rows.write_slots[first + 1])], state) < BOUND
    written = {int(slot) for slot in batch.rows.write_slots}
    for slot in set(range(len(after))) - written:
        same = torch.equal(after[slot].nan_to_num(7.0), batch.state[slot].nan_to_num(7.0))
        assert same, "a slot that no run writes"


@EACH
def test_a_run_has_the_bits_of_its_tokens_one_at_a_time(ops: Ops, layer: StateLayer) -> None:
    batch = with_runs(layer, [(5, 3, 5)])
    got, after = run(layer, ops, batch)
    rows, alone = batch.rows, batch.copied()
    for at in range(5):
        one = replace(
            rows,
            row_starts=rows.row_starts.new_tensor([0, 1]),
            context_lens=rows.context_lens[at : at + 1],
            read_slots=(rows.read_slots if at == 0 else rows.write_slots)[:1],
            write_slots=rows.write_slots[:1],
            runs=torch.ones_like(rows.runs[:1]),
            kept=torch.ones_like(rows.kept[:1]),
            num_decodes=1,
        )
        output = layer.apply(ops, [each[at : at + 1] for each in batch.inputs], alone.state, one)
        assert torch.equal(output[0], got[at])
    slot = int(rows.write_slots[0])
    assert torch.equal(alone.state[slot], after[slot])


def test_a_token_is_computed_from_those_before_it_in_its_run(ops: Ops) -> None:
    """Change a run's first token (positive control): every later output differs."""
    layer = DeltaLayer()
    batch = with_runs(layer, [(4, 3, 4)])
    got, _ = run(layer, ops, batch)
    batch.inputs[0][0] += 1
    other, _ = run(layer, ops, batch)
    assert not any(torch.equal(got[at], other[at]) for at in range(4))


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@EACH
def test_from_the_written_state_the_rest_is_computed_again(
    ops: Ops, layer: StateLayer, kept: int
) -> None:
    """Continue from the written state: a rejected token leaves nothing in it that later tokens
    would read.
    """
    batch = with_runs(layer, [(4, 3, kept)])
    got, after = run(layer, ops, batch)
    rest = replace(
        batch.rows,
        row_starts=torch.arange(5 - kept, dtype=torch.int32),
        context_lens=batch.rows.context_lens[kept:4],
        read_slots=batch.rows.write_slots[:1].repeat(4 - kept),
        write_slots=batch.rows.read_slots[:1].repeat(4 - kept),
        runs=-torch.arange(4 - kept, dtype=torch.int32),
        kept=torch.ones(4 - kept, dtype=torch.int32),
        num_decodes=4 - kept,
    )
    rest.runs[:1] = 4 - kept
    again = layer.apply(ops, [each[kept:4] for each in batch.inputs], after, rest)
    assert torch.equal(again, got[kept:4])
