"""Properties of every recurrent layer: outputs and states of rows, wherever prompts are cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops import Ops
from kernels.recurrence.state_rows import StateRows
from tests.kernels.cases import poisoned_memory, relative_error
from tests.kernels.recurrence.layers import (
    Batch,
    ConvLayer,
    DeltaLayer,
    SsdLayer,
    StateLayer,
    make_batch,
)

BOUND = 1e-5  # rounding error of sums of the decays' logarithms
LAYERS: list[StateLayer] = [ConvLayer(), DeltaLayer(), SsdLayer()]
EACH = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
# Decodes that start or continue; prompts shorter than the convolution, about as long as a chunk,
# and longer than a chunk.
MIXED = [(1, 1), (1, 9), (1, 2), (2, 2), (70, 70), (64, 100), (1, 5), (3, 8), (130, 131)]
# Positions near the convolution's width, a chunk or the end, in pairs of neighbours.
CUTS = (1, 2, 3, 4, 15, 16, 17, 33, 64, 63, 66, 65)


def assert_right(
    batch: Batch, got: Tensor, after: Tensor, layer: StateLayer, bound: float = BOUND
) -> None:
    """Check that outputs and written states are right, and that nothing else was written."""
    untouched = torch.ones(len(after), dtype=torch.bool)
    for row in range(batch.rows.num_rows):
        inputs = batch.of_row(row)
        begin, end = batch.rows.row_starts[row : row + 2].tolist()
        if int(batch.rows.context_lens[row]) == 0:
            assert not got[begin:end].any()
            continue
        output, state = layer.truth(inputs, batch.before(row))
        write = int(batch.rows.write_slots[row])
        untouched[write] = False
        assert relative_error(got[begin:end], output) < bound, row
        assert relative_error(after[write], state) < bound, row
    same = torch.equal(after[untouched].nan_to_num(7.0), batch.state[untouched].nan_to_num(7.0))
    assert same, "a slot that no row writes"


def run(layer: StateLayer, ops: Ops, batch: Batch) -> tuple[Tensor, Tensor]:
    """Run the op on a copy of the batch; return the outputs and the pool afterwards."""
    own = batch.copied()
    with poisoned_memory():
        got = layer.apply(ops, own.inputs, own.state, own.rows)
    return got, own.state


@EACH
@pytest.mark.parametrize("in_place", [True, False])
def test_rows_of_all_lengths(ops: Ops, layer: StateLayer, in_place: bool) -> None:
    batch = make_batch(layer, MIXED, in_place=in_place)
    got, after = run(layer, ops, batch)
    assert_right(batch, got, after, layer)


@EACH
@pytest.mark.parametrize("rows", [[(1, 1)], [(1, 7)], [(5, 5)], [(5, 9)]], ids=str)
def test_one_row(ops: Ops, layer: StateLayer, rows: list[tuple[int, int]]) -> None:
    batch = make_batch(layer, rows)
    got, after = run(layer, ops, batch)
    assert_right(batch, got, after, layer)


@EACH
def test_padding_writes_nothing(ops: Ops, layer: StateLayer) -> None:
    """Write nothing for padding: decodes with context 0 between others, and rows without tokens or
    slots.
    """
    rows = [(1, 3), (1, 0), (1, 1), (5, 9), (0, 0), (0, 0)]
    batch = make_batch(layer, rows)
    for padding in (1, 4, 5):
        batch.rows.read_slots[padding] = batch.rows.write_slots[padding] = 2**30
    got, after = run(layer, ops, batch)
    assert_right(batch, got, after, layer)


@EACH
def test_rows_that_go_on_from_one_state(ops: Ops, layer: StateLayer) -> None:
    batch = make_batch(layer, [(1, 4), (3, 6), (66, 70)], in_place=False)
    batch.state[batch.rows.read_slots.long()] = batch.state[int(batch.rows.read_slots[0])].clone()
    batch.rows.read_slots.fill_(int(batch.rows.read_slots[0]))
    got, after = run(layer, ops, batch)
    assert_right(batch, got, after, layer)


@EACH
@pytest.mark.parametrize("context", [0, 9], ids=["starts", "goes on"])
def test_a_prompt_cut_anywhere(ops: Ops, layer: StateLayer, context: int) -> None:
    """Cut a prompt into two launches: outputs and states equal those of one launch.

    The state at the cut equals that of a shorter prompt. The tokens after the cut are a prompt, or
    a decode if there is one token. Half of the prompts start without a state, the others from a
    state.
    """
    tokens = 67
    whole = make_batch(layer, [(tokens, context + tokens)])
    got, after = run(layer, ops, whole)
    slot = int(whole.rows.write_slots[0])
    for cut in CUTS[context > 0 :: 2]:
        first = part_of(whole, slice(0, cut), context + cut)
        head, at_cut = run(layer, ops, first)
        state = layer.truth([each[:cut] for each in whole.inputs], whole.before(0))[1]
        assert relative_error(at_cut[slot], state) < BOUND, cut
        rest = part_of(Batch(whole.inputs, at_cut, whole.rows), slice(cut, None), context + tokens)
        tail, at_end = run(layer, ops, rest)
        assert relative_error(torch.cat((head, tail)), got.double()) < BOUND, cut
        assert relative_error(at_end[slot], after[slot].double()) < BOUND, cut


def part_of(batch: Batch, tokens: slice, context: int) -> Batch:
    """Return a slice of the tokens of the only row, as a batch."""
    inputs = tuple(each[tokens] for each in batch.inputs)
    rows, new = batch.rows, inputs[0].shape[0]
    part = StateRows(
        rows.row_starts.new_tensor([0, new]),
        rows.row_starts.new_tensor([context]),
        rows.read_slots,
        rows.write_slots,
        rows.runs,
        rows.kept,
        int(new == 1),
    )
    return Batch(inputs, batch.state, part)


@EACH
def test_a_row_in_which_all_is_wrong_spreads_to_none(ops: Ops, layer: StateLayer) -> None:
    batch = make_batch(layer, [(1, 3), (1, 3), (40, 41), (40, 41)])
    clean, _ = run(layer, ops, batch)
    batch.inputs[0][1] = torch.nan
    batch.inputs[0][10] = torch.nan
    got, after = run(layer, ops, batch)
    others = torch.cat((torch.arange(1), torch.arange(42, 82)))
    assert torch.equal(got[others], clean[others])
    for row in (0, 3):
        assert after[int(batch.rows.write_slots[row])].isfinite().all()
    assert not got[1].isfinite().all(), "the control"


@EACH
def test_a_second_launch_from_another_slot_gives_the_same(ops: Ops, layer: StateLayer) -> None:
    """Repeat a launch from another slot: with two versions of a state, this gives the same
    result.
    """
    own = make_batch(layer, MIXED, in_place=False).copied()
    first = layer.apply(ops, own.inputs, own.state, own.rows)
    states = own.state.clone()
    again = layer.apply(ops, own.inputs, own.state, own.rows)
    assert torch.equal(first, again)
    assert torch.equal(states.nan_to_num(7.0), own.state.nan_to_num(7.0))


@EACH
def test_no_tokens(ops: Ops, layer: StateLayer) -> None:
    batch = make_batch(layer, [(1, 1)])
    none = torch.zeros(1, dtype=torch.int32)
    rows = StateRows(none, none[:0], none[:0], none[:0], none[:0], none[:0], 0)
    inputs = tuple(each[:0] for each in batch.inputs)
    assert layer.apply(ops, inputs, batch.state, rows).shape[0] == 0
