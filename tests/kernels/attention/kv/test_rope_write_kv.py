"""The kernel after the QKV product returns q, and writes k and v to the given slots only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kernels.errors import UnsupportedShape
from kernels.ops import Ops
from tests.kernels import naive
from tests.kernels.cases import Geometry, poisoned_memory, relative_error

THETA, EPS, LAYERS, LAYER, BLOCKS = 10_000.0, 1e-6, 3, 1, 5
POSITIONS = [0, 1, 17, 500, 2047]
# slots in blocks of 16, in mixed order; some are a block's first or last
SLOTS = [33, 0, 15, 79, 16]

GEOMETRIES = [
    Geometry(4, 2, 32),
    Geometry(1, 1, 16),
    Geometry(6, 2, 80),
    Geometry(16, 1, 64),
    Geometry(3, 3, 96),
    Geometry(8, 4, 128, dtype=torch.float16),
]


@dataclass(frozen=True)
class Inputs:
    qkv: Tensor
    positions: Tensor
    cos_sin: Tensor
    q_norm: Tensor
    k_norm: Tensor
    pool: Tensor
    slots: Tensor


def tables(head_dim: int, length: int) -> Tensor:
    half = head_dim // 2
    frequency = THETA ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), 1).float()


def make_inputs(geometry: Geometry) -> Inputs:
    g, generator = geometry, torch.Generator().manual_seed(3)
    heads = g.q_heads + 2 * g.kv_heads
    qkv = torch.randn(len(POSITIONS), heads * g.head_dim, generator=generator)
    pool = torch.full((BLOCKS, LAYERS, 2, g.kv_heads, g.block_size, g.head_dim), torch.nan)
    return Inputs(
        qkv=qkv.to(g.dtype),
        positions=torch.tensor(POSITIONS),
        cos_sin=tables(g.head_dim, 2048),
        q_norm=torch.randn(g.head_dim, generator=generator).to(g.dtype),
        k_norm=torch.randn(g.head_dim, generator=generator).to(g.dtype),
        pool=pool.to(g.dtype),
        slots=torch.tensor(SLOTS),
    )


def run(
    ops: Ops,
    geometry: Geometry,
    inputs: Inputs,
    q_norm: bool,
    k_norm: bool,
    *,
    norms_values: bool = False,
    gated: bool = False,
) -> Tensor:
    with poisoned_memory():
        return ops.rope_write_kv(
            inputs.qkv,
            inputs.positions,
            inputs.cos_sin,
            inputs.q_norm if q_norm else None,
            inputs.k_norm if k_norm else None,
            EPS,
            inputs.pool[:, LAYER],
            inputs.slots,
            geometry.q_heads,
            geometry.dtype,
            norms_values,
            gated,
        )


def expected_heads(heads: Tensor, weight: Tensor | None, rotary_dim: int | None = None) -> Tensor:
    """Norm and rotate heads (T, h, D) in float64 by `naive`; with rotary_dim None, rotate the whole
    head.
    """
    normed = heads.double() if weight is None else naive.rms_norm(heads, weight, EPS)
    size = normed.shape[-1] if rotary_dim is None else rotary_dim
    turned, others = normed[..., :size], normed[..., size:]
    rotated = torch.stack(
        [
            torch.stack([naive.rotate(head, position, THETA) for head in token])
            for token, position in zip(turned, POSITIONS, strict=True)
        ]
    )
    return torch.cat((rotated, others), -1)


def written(inputs: Inputs, which: int) -> Tensor:
    """Return the numbers in the tokens' slots, (T, Hkv, D); `which` is 0 for keys, 1 for values."""
    size = inputs.pool.shape[4]
    return torch.stack([inputs.pool[s // size, LAYER, which, :, s % size] for s in SLOTS])


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_takes_the_product_in_parts(ops: Ops, geometry: Geometry) -> None:
    plain, inputs = make_inputs(geometry), make_inputs(geometry)
    noise = torch.randn(2, *inputs.qkv.shape, generator=torch.Generator().manual_seed(4))
    parts = torch.stack((inputs.qkv.float() - noise.sum(0), *noise))
    got = run(ops, geometry, replace(inputs, qkv=parts), q_norm=True, k_norm=False)
    wanted = run(ops, geometry, plain, q_norm=True, k_norm=False)
    bound = 1e-5 if geometry.dtype == torch.float32 else 2e-3
    assert got.dtype == wanted.dtype == geometry.dtype
    assert relative_error(got, wanted.double()) < bound
    for which in (0, 1):
        assert relative_error(written(inputs, which), written(plain, which).double()) < bound


@pytest.mark.parametrize("norms", [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_returns_q_and_writes_k_and_v(
    ops: Ops, geometry: Geometry, norms: tuple[bool, bool]
) -> None:
    g, inputs = geometry, make_inputs(geometry)
    got_q = run(ops, g, inputs, *norms)
    heads = inputs.qkv.view(len(POSITIONS), -1, g.head_dim)
    q, k, v = torch.split(heads, [g.q_heads, g.kv_heads, g.kv_heads], dim=1)
    bound = 1e-5 if g.dtype == torch.float32 else 1e-3
    assert got_q.dtype == g.dtype
    assert relative_error(got_q, expected_heads(q, inputs.q_norm if norms[0] else None)) < bound
    keys = expected_heads(k, inputs.k_norm if norms[1] else None)
    assert relative_error(written(inputs, 0), keys) < bound
    assert torch.equal(written(inputs, 1), v)


def test_head_norms_whose_weights_are_float32(ops: Ops) -> None:
    """Apply head norms in float32: the weight 1 + 2^-12 would be 1 in float16."""
    g = Geometry(8, 4, 128, dtype=torch.float16)
    inputs = make_inputs(g)
    near_one = torch.full((g.head_dim,), 1 + 2.0**-12)
    wide = replace(inputs, q_norm=64 * near_one, k_norm=near_one)
    got = run(ops, g, wide, q_norm=True, k_norm=True)
    heads = inputs.qkv.view(len(POSITIONS), -1, g.head_dim)
    assert got.dtype == torch.float16
    assert relative_error(got, expected_heads(heads[:, : g.q_heads], wide.q_norm)) < 4e-4
    keys = expected_heads(heads[:, g.q_heads : g.q_heads + g.kv_heads], wide.k_norm)
    assert relative_error(written(wide, 0), keys) < 4e-4


@pytest.mark.parametrize("geometry", GEOMETRIES[:3], ids=str)
def test_values_are_made_of_keys_and_normed(ops: Ops, geometry: Geometry) -> None:
    g, whole = geometry, make_inputs(geometry)
    heads = whole.qkv.view(len(POSITIONS), -1, g.head_dim)[:, : g.q_heads + g.kv_heads]
    inputs = replace(whole, qkv=heads.flatten(1))
    got = run(ops, g, inputs, True, True, norms_values=True)
    q, k = heads.split([g.q_heads, g.kv_heads], dim=1)
    assert relative_error(got, expected_heads(q, inputs.q_norm)) < 1e-5
    assert relative_error(written(inputs, 0), expected_heads(k, inputs.k_norm)) < 1e-5
    values = naive.rms_norm(k, torch.ones(g.head_dim), EPS)
    assert relative_error(written(inputs, 1), values) < 1e-5


def test_values_of_their_own_are_normed(ops: Ops) -> None:
    g = Geometry(4, 2, 32)
    inputs, plain = make_inputs(g), make_inputs(g)
    run(ops, g, inputs, True, True, norms_values=True)
    run(ops, g, plain, True, True)
    assert torch.equal(written(inputs, 0), written(plain, 0))
    values = naive.rms_norm(written(plain, 1), torch.ones(g.head_dim), EPS)
    assert relative_error(written(inputs, 1), values) < 1e-5


def test_queries_alone_write_nothing(ops: Ops) -> None:
    g, whole = Geometry(4, 2, 32), make_inputs(Geometry(4, 2, 32))
    alone = replace(whole, qkv=whole.qkv[:, : g.q_heads * g.head_dim])
    got = run(ops, g, alone, True, False)
    assert alone.pool.isnan().all()
    assert torch.equal(got, run(ops, g, whole, True, False))


def test_a_product_of_other_heads_is_refused(ops: Ops) -> None:
    g, inputs = Geometry(4, 2, 32), make_inputs(Geometry(4, 2, 32))
    for width in (-32, 32):
        qkv = torch.zeros(len(POSITIONS), inputs.qkv.shape[1] + width)
        with pytest.raises(UnsupportedShape, match=f"{qkv.shape[1]} numbers"):
            run(ops, g, replace(inputs, qkv=qkv), True, True)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("geometry", "rotary_dim"),
    [(Geometry(4, 2, 32), 8), (Geometry(6, 2, 80), 32), (Geometry(3, 3, 96), 72)],
    ids=str,
)
def test_a_narrower_table_turns_the_first_numbers_of_a_head(
    ops: Ops, geometry: Geometry, rotary_dim: int, *, normed: bool
) -> None:
    g, inputs = geometry, make_inputs(geometry)
    inputs = replace(inputs, cos_sin=tables(rotary_dim, 2048))
    q, k, v = torch.split(
        inputs.qkv.view(len(POSITIONS), -1, g.head_dim), [g.q_heads, g.kv_heads, g.kv_heads], dim=1
    )
    got = run(ops, g, inputs, normed, normed)
    weights = (inputs.q_norm, inputs.k_norm) if normed else (None, None)
    assert relative_error(got, expected_heads(q, weights[0], rotary_dim)) < 1e-5
    assert relative_error(written(inputs, 0), expected_heads(k, weights[1], rotary_dim)) < 1e-5
    assert torch.equal(written(inputs, 1), v)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_touches_no_other_slot(ops: Ops, geometry: Geometry) -> None:
    inputs = make_inputs(geometry)
    run(ops, geometry, inputs, True, True)
    by_slot = inputs.pool[:, LAYER].permute(0, 3, 1, 2, 4).flatten(0, 1)
    kept = torch.ones(len(by_slot), dtype=torch.bool)
    kept[inputs.slots] = False
    assert by_slot[kept].isnan().all()
    assert by_slot[~kept].isfinite().all()
    assert inputs.pool[:, [0, 2]].isnan().all()


def test_position_zero_is_not_turned(ops: Ops) -> None:
    geometry = Geometry()
    inputs = make_inputs(geometry)
    q = run(ops, geometry, inputs, False, False)
    assert torch.equal(q[0].flatten(), inputs.qkv[0, : 4 * 32])
    assert not torch.equal(q[1].flatten(), inputs.qkv[1, : 4 * 32])


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_gates_between_query_heads_change_nothing(ops: Ops, geometry: Geometry) -> None:
    plain, gated = make_inputs(geometry), make_inputs(geometry)
    heads = plain.qkv.view(len(POSITIONS), -1, geometry.head_dim)
    queries, others = heads[:, : geometry.q_heads], heads[:, geometry.q_heads :]
    pairs = torch.stack((queries, torch.full_like(queries, torch.nan)), dim=2).flatten(1, 2)
    gated = replace(gated, qkv=torch.cat((pairs, others), dim=1).flatten(1))
    wanted = run(ops, geometry, plain, True, True)
    assert torch.equal(run(ops, geometry, gated, True, True, gated=True), wanted)
    assert torch.equal(written(gated, 0), written(plain, 0))
    assert torch.equal(written(gated, 1), written(plain, 1))


def test_takes_rows_out_of_a_wider_tensor(ops: Ops) -> None:
    geometry = Geometry()
    plain, padded = make_inputs(geometry), make_inputs(geometry)
    wide = torch.full((len(POSITIONS), padded.qkv.shape[1] + 5), torch.nan)
    wide[:, :-5] = padded.qkv
    object.__setattr__(padded, "qkv", wide[:, :-5])
    assert torch.equal(
        run(ops, geometry, plain, True, True), run(ops, geometry, padded, True, True)
    )


def test_no_tokens_write_nothing(ops: Ops) -> None:
    inputs, none = make_inputs(Geometry()), torch.empty(0, dtype=torch.int64)
    kv = inputs.pool[:, LAYER]
    q = ops.rope_write_kv(
        inputs.qkv[:0], none, inputs.cos_sin, None, None, EPS, kv, none, 4, kv.dtype
    )
    assert q.shape == (0, 4, 32)
    assert inputs.pool.isnan().all()


@pytest.mark.parametrize(
    "geometry",
    [Geometry(head_dim=15), Geometry(head_dim=514), Geometry(block_size=24), Geometry(3, 2)],
    ids=str,
)
def test_refuses_what_it_cannot_compute(ops: Ops, geometry: Geometry) -> None:
    with pytest.raises(UnsupportedShape):
        run(ops, geometry, make_inputs(geometry), False, False)
