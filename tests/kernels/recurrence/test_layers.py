"""Single recurrences check shapes, keep states in float32, and are right for difficult inputs."""

from __future__ import annotations

import pytest
import torch

from kernels.errors import UnsupportedShape
from kernels.ops import Ops
from tests.kernels.recurrence.layers import (
    ConvLayer,
    DeltaLayer,
    SsdLayer,
    StateLayer,
    make_batch,
)
from tests.kernels.recurrence.test_states import assert_right, run

ROWS = [(1, 4), (1, 1), (70, 72), (5, 5)]
SHAPES: list[StateLayer] = [
    ConvLayer(channels=300, width=2, has_bias=False),
    ConvLayer(channels=7, width=3),
    DeltaLayer(key_heads=2, heads=6, keys=32, values=16),
    DeltaLayer(key_heads=2, heads=2, keys=64, values=48),
    DeltaLayer(key_heads=1, heads=1, keys=16, values=64),
    SsdLayer(heads=3, groups=1, head_dim=16, state_size=32),
    SsdLayer(heads=2, groups=2, head_dim=80, state_size=16),
    SsdLayer(dt_limit=(0.3, 0.5)),
]
HARD: list[StateLayer] = [
    # all tokens have one key, which makes a linear system far from the identity
    DeltaLayer(repeats=True),
    DeltaLayer(repeats=True, spread=0.0),
    DeltaLayer(spread=40.0),  # some states are forgotten at once, others never
    DeltaLayer(spread=1e6),
    SsdLayer(spread=40.0),
    SsdLayer(spread=1e4),
]


@pytest.mark.parametrize("layer", SHAPES, ids=str)
def test_shapes(ops: Ops, layer: StateLayer) -> None:
    batch = make_batch(layer, ROWS)
    got, after = run(layer, ops, batch)
    assert_right(batch, got, after, layer)


@pytest.mark.parametrize("layer", HARD, ids=str)
def test_inputs_that_are_hard_to_compute(ops: Ops, layer: StateLayer) -> None:
    batch = make_batch(layer, [(1, 3), (130, 133)])
    got, after = run(layer, ops, batch)
    assert_right(batch, got, after, layer, bound=2e-4)


@pytest.mark.parametrize("layer", [DeltaLayer(dtype=torch.float16), SsdLayer(dtype=torch.float16)])
def test_states_are_float32_whatever_the_activations_are(ops: Ops, layer: StateLayer) -> None:
    batch = make_batch(layer, ROWS)
    got, after = run(layer, ops, batch)
    assert got.dtype == torch.float16
    assert after.dtype == torch.float32
    assert_right(batch, got, after, layer, bound=2e-3)


def test_a_convolution_cut_anywhere_gives_the_same_bits(ops: Ops) -> None:
    """Cut a prompt anywhere: a convolution's state holds the inputs themselves, so the bits are the
    same.
    """
    layer = ConvLayer(dtype=torch.float16)
    batch = make_batch(layer, [(40, 40)])
    got, after = run(layer, ops, batch)
    assert torch.equal(after[int(batch.rows.write_slots[0])], batch.inputs[0][-3:].T)
    for cut in range(2, 39, 3):
        rows = make_batch(layer, [(cut, cut)]).rows
        own = batch.copied()
        head = layer.apply(ops, [batch.inputs[0][:cut]], own.state, rows)
        rows = make_batch(layer, [(40 - cut, 40)]).rows
        tail = layer.apply(ops, [batch.inputs[0][cut:]], own.state, rows)
        assert torch.equal(torch.cat((head, tail)), got)


def test_a_time_step_that_is_no_number_shows(ops: Ops) -> None:
    layer = SsdLayer(dt_limit=(0.1, 0.5))
    batch = make_batch(layer, [(1, 1), (3, 3)])
    batch.inputs[1][0] = batch.inputs[1][1] = torch.nan
    got, _ = run(layer, ops, batch)
    assert got[:2].isnan().all()


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (ConvLayer(width=5), "5 taps"),
        (DeltaLayer(key_heads=2, heads=3), "3 heads of states over 2"),
        (DeltaLayer(keys=24), "24 numbers"),
        (DeltaLayer(values=24), "24 columns"),
        (SsdLayer(state_size=512), "512 numbers"),
        (SsdLayer(head_dim=8), "8 columns"),
        (SsdLayer(heads=4, groups=3), "4 heads of states over 3"),
    ],
)
def test_refuses_shapes(ops: Ops, layer: StateLayer, said: str) -> None:
    batch = make_batch(layer, [(1, 1)])
    with pytest.raises(UnsupportedShape, match=said):
        layer.apply(ops, batch.inputs, batch.state, batch.rows)
