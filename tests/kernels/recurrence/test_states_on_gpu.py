"""The compiled recurrences on a GPU, in the dtypes of serving, compared with float64, and
captured.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.ops import torch_ops, triton_ops
from tests.kernels.cases import poisoned_memory, relative_error
from tests.kernels.recurrence import naive
from tests.kernels.recurrence.layers import (
    ConvLayer,
    DeltaLayer,
    SsdLayer,
    StateLayer,
    make_batch,
    normal,
)
from tests.kernels.recurrence.test_states import MIXED, assert_right, part_of, run

pytestmark = pytest.mark.gpu

OPS = triton_ops()
BOUNDS = {torch.float32: 5e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DTYPES = pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
CUDA = "cuda"
BFLOAT16: list[StateLayer] = [
    ConvLayer(channels=1000, dtype=torch.bfloat16, device=CUDA),
    DeltaLayer(2, 6, 128, 128, torch.bfloat16, CUDA),
    SsdLayer(8, 2, 64, 128, dtype=torch.bfloat16, device=CUDA),
]
EACH = pytest.mark.parametrize("layer", BFLOAT16, ids=lambda layer: type(layer).__name__)


@DTYPES
@pytest.mark.parametrize(
    "layer",
    [
        ConvLayer(channels=1000),
        ConvLayer(channels=96, width=2, has_bias=False),
        DeltaLayer(2, 6, 128, 128),
        DeltaLayer(1, 2, 256, 256),
        DeltaLayer(1, 1, 64, 48),
        SsdLayer(8, 2, 64, 128),
        SsdLayer(2, 1, 80, 128),
        SsdLayer(2, 1, 64, 256),
    ],
    ids=str,
)
@pytest.mark.parametrize("in_place", [True, False])
def test_rows_of_all_lengths(
    layer: ConvLayer | DeltaLayer | SsdLayer, dtype: torch.dtype, in_place: bool
) -> None:
    layer = replace(layer, dtype=dtype, device=CUDA)
    batch = make_batch(layer, MIXED, in_place=in_place)
    got, after = run(layer, OPS, batch)
    assert_right(batch, got, after, layer, BOUNDS[dtype])


@DTYPES
@pytest.mark.parametrize(
    "layer",
    [
        DeltaLayer(1, 2, 128, 128, repeats=True),
        DeltaLayer(1, 2, 128, 128, repeats=True, spread=0.0),
        DeltaLayer(1, 2, 128, 128, spread=1e4),
        SsdLayer(4, 1, 64, 128, spread=30.0),  # outputs of a larger spread would overflow float16
    ],
    ids=str,
)
def test_inputs_that_are_hard_to_compute(layer: DeltaLayer | SsdLayer, dtype: torch.dtype) -> None:
    layer = replace(layer, dtype=dtype, device=CUDA)
    batch = make_batch(layer, [(1, 3), (300, 301)])
    got, after = run(layer, OPS, batch)
    assert_right(batch, got, after, layer, max(BOUNDS[dtype], 5e-4))


@EACH
def test_a_prompt_cut_anywhere(layer: StateLayer) -> None:
    tokens = 200
    whole = make_batch(layer, [(tokens, tokens + 9)])
    got, after = run(layer, OPS, whole)
    slot = int(whole.rows.write_slots[0])
    for cut in (1, 2, 3, 63, 64, 65, 128, 198, 199):
        head, at_cut = run(layer, OPS, part_of(whole, slice(0, cut), 9 + cut))
        state = layer.truth([each[:cut] for each in whole.inputs], whole.before(0))[1]
        assert relative_error(at_cut[slot], state) < 1e-2, cut
        rest = part_of(replace(whole, state=at_cut), slice(cut, None), tokens + 9)
        tail, at_end = run(layer, OPS, rest)
        assert relative_error(torch.cat((head, tail)), got.double()) < 1e-2, cut
        assert relative_error(at_end[slot], after[slot].double()) < 1e-2, cut


@EACH
def test_long_prompts_beside_decodes(layer: StateLayer) -> None:
    """Compute long prompts beside decodes.

    The reference was itself compared with float64 on the CPU.
    """
    batch = make_batch(layer, [(1, 9)] * 5 + [(4096, 4096), (1500, 9000), (777, 777)])
    got, after = run(layer, OPS, batch)
    own = batch.copied()
    wanted, states = layer.apply(torch_ops(), own.inputs, own.state, own.rows), own.state
    assert relative_error(got, wanted.double()) < 1e-2
    for slot in batch.rows.write_slots.tolist():
        assert relative_error(after[slot], states[slot].double()) < 1e-2


@EACH
def test_a_state_in_place_is_read_before_it_is_written(layer: StateLayer) -> None:
    """Overwrite the state in its slot: repeated launches give the bits of launches with two
    slots.
    """
    rows = [(1, 9)] * 40 + [(2, 9), (300, 301), (40, 50), (70, 72)]
    apart = make_batch(layer, rows, in_place=False)
    got, after = run(layer, OPS, apart)
    together = replace(apart, rows=replace(apart.rows, write_slots=apart.rows.read_slots))
    for _ in range(20):
        same, states = run(layer, OPS, together)
        assert torch.equal(same, got)
        read, write = apart.rows.read_slots.long(), apart.rows.write_slots.long()
        assert torch.equal(states[read], after[write])


@EACH
def test_a_captured_step_follows_what_changes_on_the_device(layer: StateLayer) -> None:
    """Replay a captured step with other lengths, contexts and slots; padding of both kinds writes
    nothing.
    """
    spare, total = (0, 0), 200
    wanted = (
        [(1, 5), (1, 1), (150, 160), (30, 30), (20, 29)],
        [(1, 1), (1, 7), (200, 200), spare, spare],
        [(1, 0), (1, 7), (3, 9), (64, 64), spare],
        [(1, 0), (1, 0), spare, spare, spare],
    )
    batches = [make_batch(layer, rows, seed=seed) for seed, rows in enumerate(wanted)]
    inputs = tuple(each.new_zeros((2 + total, each.shape[1])) for each in batches[0].inputs)
    own = replace(batches[0].copied(), inputs=inputs)
    own = replace(own, rows=replace(own.rows, num_decodes=2))
    layer.apply(OPS, own.inputs, own.state.clone(), own.rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer.apply(OPS, own.inputs, own.state, own.rows)
    for batch in batches:
        for static, new in zip(own.inputs, batch.inputs, strict=True):
            static[: len(new)] = new
        own.state.copy_(batch.state)
        for name in ("row_starts", "context_lens", "read_slots", "write_slots"):
            getattr(own.rows, name).copy_(getattr(batch.rows, name))
        graph.replay()
        assert_right(batch, out[: len(batch.inputs[0])], own.state, layer, 1e-2)


@pytest.mark.parametrize("layer", BFLOAT16[1:], ids=lambda layer: type(layer).__name__)
def test_a_pool_beyond_two_to_the_31_numbers(layer: StateLayer) -> None:
    batch = make_batch(layer, [(1, 4), (1, 1), (90, 95)])
    numbers = batch.state[0].numel()
    slots = 2**31 // numbers + len(batch.state) + 2
    pool = torch.empty((slots, *layer.state_shape), dtype=torch.float32, device=CUDA)
    assert pool.numel() > 2**31
    far = slots - len(batch.state)
    pool[far:] = batch.state
    rows = batch.rows
    moved = replace(rows, read_slots=rows.read_slots + far, write_slots=rows.write_slots + far)
    got = layer.apply(OPS, batch.inputs, pool, moved)
    assert_right(batch, got, pool[far:], layer, 1e-2)


@DTYPES
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize(("columns", "group"), [(6144, 128), (4096, 512), (8192, 8192)])
def test_gated_norms(columns: int, group: int, gate_first: bool, dtype: torch.dtype) -> None:
    x, gate = (normal(33, columns, seed=seed, dtype=dtype, device=CUDA) for seed in (1, 2))
    weight = normal(group, seed=3, dtype=dtype, device=CUDA)
    with poisoned_memory():
        got = OPS.gated_norm(x, gate * 20, weight, 1e-6, group, gate_first)
    truth = naive.gated_norm(x, gate * 20, weight, 1e-6, group, gate_first)
    assert relative_error(got, truth) < max(BOUNDS[dtype], 1e-5)
    far = torch.full_like(gate, -200.0)
    assert OPS.gated_norm(x, far, weight, 1e-6, group, gate_first).isfinite().all()
