"""The kernel before latent attention rotates queries, and writes latents to the pool."""

from __future__ import annotations

import pytest
import torch

from kernels.attention.kv import fp8_kv
from kernels.ops import Ops
from storage.layouts.kv_layout import FP8, KvGroup, KvLayout
from storage.pools.device_pool import DevicePool
from tests.kernels import naive as rooms
from tests.kernels.cases import poisoned_memory, relative_error
from tests.kernels.latents import naive

THETA, EPS, BLOCK_SIZE, RANK, ROPE = 10_000.0, 1e-6, 16, 32, 16
# positions, and slots in blocks of 16 in mixed order
POSITIONS, SLOTS = [0, 1, 17, 500], [33, 0, 15, 79]


def table(length: int) -> torch.Tensor:
    half = ROPE // 2
    frequency = THETA ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), 1).float()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("heads", "nope"), [(1, 16), (5, 24), (20, 80)])
@pytest.mark.parametrize("dtype", ["float32", FP8])
def test_queries_are_rotated_and_latents_written(
    ops: Ops, heads: int, nope: int, dtype: str, interleaved: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    tokens, size = len(POSITIONS), heads * (nope + ROPE)
    product = torch.randn(tokens, size + RANK + ROPE, generator=generator)
    norm = torch.randn(RANK, generator=generator)
    group = KvGroup((0, 1), 1, RANK + ROPE, dtype, scale_bytes=32, has_values=False)
    pool = DevicePool(KvLayout((group,), BLOCK_SIZE), 5, torch.device("cpu"))
    kv, slots = pool.layers[1], torch.tensor(SLOTS)
    q, latent = product[:, :size], product[:, size:]
    with poisoned_memory():
        positions = torch.tensor(POSITIONS)
        how = heads, interleaved
        got = ops.write_latents(q, latent, positions, table(512), norm, EPS, kv, slots, *how)
    queries = q.view(tokens, heads, -1)
    normed = rooms.rms_norm(latent[:, :RANK], norm, EPS)
    for token, position in enumerate(POSITIONS):
        for head in range(heads):
            own = queries[token, head]
            wanted = naive.rotated(own[nope:], position, THETA, interleaved=interleaved)
            assert torch.equal(got[token, head, :nope], own[:nope])
            assert relative_error(got[token, head, nope:], wanted) < 1e-5
        key = naive.rotated(latent[token, RANK:], position, THETA, interleaved=interleaved)
        wanted = torch.cat((normed[token], key))
        block, place = divmod(SLOTS[token], BLOCK_SIZE)
        kept = kv[block, 0, 0, place]
        if dtype == FP8:
            kept = fp8_kv.dequantised(kv, torch.tensor([block]))[0, 0, 0, place].double()
            # The interpreter loses the carry of a number that is rounded up to a power of two.
            kept = torch.where((2 * kept - wanted).abs() < (kept - wanted).abs(), 2 * kept, kept)
            assert ((kept - wanted).abs() <= wanted.abs() * 2.0**-4 * 1.001 + 1e-4).all()
        else:
            assert relative_error(kept, wanted) < 1e-5
    assert pool.tensor.view(torch.uint8).count_nonzero() <= tokens * (RANK + ROPE + 2) * 4


def test_latents_in_fp8_have_the_bits_of_the_reference(ops: Ops) -> None:
    """Write latents at position 0, where the rotation changes nothing, so that the numbers stay
    exact.
    """
    from kernels.ops import torch_ops

    kept = []
    for one in (ops, torch_ops()):
        group = KvGroup((0,), 1, RANK + ROPE, FP8, scale_bytes=32, has_values=False)
        pool = DevicePool(KvLayout((group,), BLOCK_SIZE), 2, torch.device("cpu"))
        generator = torch.Generator().manual_seed(5)
        q, latent = torch.randn(1, 40), torch.randn(1, RANK + ROPE, generator=generator)
        norm, zero = torch.ones(RANK), torch.tensor([0])
        one.write_latents(q, latent, zero, table(1), norm, EPS, pool.layers[0], zero, 1, True)
        kept.append(pool.tensor)
    differ = kept[0] != kept[1]
    halved = kept[0].int() + 8 == kept[1].int()
    assert halved[differ].all(), "the interpreter loses the carry into the exponent"
    assert differ.sum() < 0.1 * kept[1].count_nonzero()


def test_no_tokens(ops: Ops) -> None:
    group = KvGroup((0,), 1, RANK + ROPE, "float32", has_values=False)
    kv = DevicePool(KvLayout((group,), BLOCK_SIZE), 1, torch.device("cpu")).layers[0]
    none = torch.zeros(0, dtype=torch.int64)
    q, latent, norm = torch.empty(0, 80), torch.empty(0, RANK + ROPE), torch.ones(RANK)
    assert ops.write_latents(q, latent, none, table(1), norm, EPS, kv, none, 2, True).shape == (
        0,
        2,
        40,
    )
