"""The ops, compared with the functions of `transformers` that define these layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron_h
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from kernels.ops import Ops
from tests.kernels.cases import relative_error
from tests.kernels.recurrence.layers import (
    ConvLayer,
    DeltaLayer,
    SsdLayer,
    make_batch,
    normal,
)
from tests.kernels.recurrence.test_states import run

BOUND, EPS, TOKENS = 1e-5, 1e-6, 70


def test_convolution(ops: Ops) -> None:
    layer = ConvLayer()
    batch = make_batch(layer, [(1, 9), (TOKENS, TOKENS)])
    got, after = run(layer, ops, batch)
    weight, bias = normal(40, 4, seed=1), normal(40, seed=2)
    kept = batch.before(0).clone()[None]
    theirs = qwen3_next.causal_conv1d_update(batch.of_row(0)[0].T[None], kept, weight, bias, "silu")
    assert relative_error(got[:1], theirs[0].T.double()) < BOUND
    assert torch.equal(after[int(batch.rows.write_slots[0])], kept[0])
    theirs = qwen3_next.causal_conv1d_fn(batch.of_row(1)[0].T[None], weight, bias, "silu")
    assert relative_error(got[1:], theirs[0].T.double()) < BOUND


def test_gated_delta_rule(ops: Ops) -> None:
    layer = DeltaLayer(key_heads=2, heads=4, keys=16, values=32)
    batch = make_batch(layer, [(1, 9), (TOKENS, TOKENS + 5)])
    got, after = run(layer, ops, batch)
    ways = (qwen3_next.torch_recurrent_gated_delta_rule, qwen3_next.torch_chunk_gated_delta_rule)
    a_log, dt_bias = normal(4, seed=3) - 1, normal(4, seed=4)
    for row, way in enumerate(ways):
        qkv, a, b = (each[None] for each in batch.of_row(row))
        q, k, v = qkv.split([32, 32, 128], -1)
        output, state = way(
            q.unflatten(-1, (2, 16)),
            k.unflatten(-1, (2, 16)),
            v.unflatten(-1, (4, 32)),
            g=-a_log.exp() * F.softplus(a + dt_bias),
            beta=b.sigmoid(),
            initial_state=batch.before(row)[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        mine = got[:1] if row == 0 else got[1:]
        assert relative_error(mine, output[0].flatten(1).double()) < BOUND
        assert relative_error(after[int(batch.rows.write_slots[row])], state[0].double()) < BOUND


def test_state_space_model(ops: Ops) -> None:
    limits = (0.05, torch.inf)
    layer = SsdLayer(dt_limit=limits)
    batch = make_batch(layer, [(TOKENS, TOKENS + 5)])
    got, after = run(layer, ops, batch)
    a_log, dt_bias, skip = normal(3, 4, seed=5)
    xbc, dt = batch.inputs
    x, b, c = xbc.split([128, 32, 32], 1)
    output, state = nemotron_h.mamba2_chunk_scan(
        x.reshape(1, TOKENS, 4, 32), dt[None], -(a_log - 1).exp(),
        b.reshape(1, TOKENS, 2, 16), c.reshape(1, TOKENS, 2, 16), 16, skip,
        dt_bias=dt_bias - 1, initial_states=batch.before(0)[None], dt_softplus=True,
        dt_limit=limits, return_final_states=True,
    )  # fmt: skip
    assert relative_error(got, output[0].flatten(1).double()) < BOUND
    assert relative_error(after[int(batch.rows.write_slots[0])], state[0].double()) < BOUND


def test_state_space_model_of_one_token(ops: Ops) -> None:
    layer = SsdLayer()
    batch = make_batch(layer, [(1, 5)])
    got, after = run(layer, ops, batch)
    a_log, dt_bias, skip = normal(3, 4, seed=5)
    xbc, dt = batch.inputs
    x, b, c = xbc.split([128, 32, 32], 1)
    state = batch.before(0)[None].clone()
    rates, wide = -(a_log - 1).exp(), (4, 32)
    output = nemotron_h.mamba2_selective_state_update(
        state, x.reshape(1, 4, 32), dt[..., None].expand(1, *wide),
        rates[:, None, None].expand(*wide, 16), b.reshape(1, 2, 16), c.reshape(1, 2, 16),
        skip[:, None].expand(wide), dt_bias=(dt_bias - 1)[:, None].expand(wide), dt_softplus=True,
    )  # fmt: skip
    assert relative_error(got, output.flatten(1).double()) < BOUND
    assert relative_error(after[int(batch.rows.write_slots[0])], state[0].double()) < BOUND


def test_gated_norms(ops: Ops) -> None:
    x, gate, weight = normal(5, 96, seed=1), normal(5, 96, seed=2), normal(96, seed=3)
    by_head = qwen3_next.Qwen3NextRMSNormGated(32, EPS)
    by_head.weight = torch.nn.Parameter(weight[:32])
    theirs = by_head(x.view(-1, 32), gate.view(-1, 32)).view(5, 96).detach()
    assert relative_error(ops.gated_norm(x, gate, weight[:32], EPS, 32, False), theirs) < 1e-6
    by_group = nemotron_h.NemotronHRMSNormGated(96, 48, EPS)
    by_group.weight = torch.nn.Parameter(weight)
    assert (
        relative_error(ops.gated_norm(x, gate, weight, EPS, 48, True), by_group(x, gate).detach())
        < 1e-6
    )
