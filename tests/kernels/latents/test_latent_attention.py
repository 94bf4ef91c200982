"""Attention over latents by the reference and the kernels, compared with float64.

It is computed in both ways: absorbed and expanded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv import fp8_kv
from kernels.e4m3 import E4M3
from kernels.errors import UnsupportedShape
from kernels.latents import attend_latents, expanded
from kernels.latents.latent_shape import LatentShape
from kernels.ops import Ops, torch_ops
from storage.layouts.kv_layout import FP8, KvGroup, KvLayout
from storage.pools.device_pool import DevicePool
from tests.kernels.cases import NO_BLOCK_IDS, make_layout, poisoned_memory, relative_error
from tests.kernels.latents import naive

BLOCK_SIZE = 16
SHAPE = LatentShape(nope=24, rope=16, values=32, rank=32, scale=0.2)
# has more numbers for values than for keys
WIDE = LatentShape(nope=32, rope=32, values=96, rank=64, scale=0.15)
Rows = list[tuple[int, int]]  # (number of new tokens, length of the context)
BATCHES: dict[str, Rows] = {
    "decodes": [(1, 1), (1, 15), (1, 16), (1, 17), (1, 300)],
    "a-prompt": [(33, 33)],
    "prompts-over-prefixes": [(7, 40), (16, 64), (2, 131)],
    "mixed": [(1, 30), (1, 129), (9, 9), (40, 100), (1, 5)],
}


@dataclass(frozen=True, slots=True)
class Case:
    """A batch in the op's form, and each row's queries and latents in order."""

    q: Tensor
    kv: Tensor
    weight: Tensor
    layout: BatchLayout
    shape: LatentShape
    rows: tuple[tuple[Tensor, Tensor], ...]

    def truth(self) -> Tensor:
        """Return the result of attention, (T, H, V) float64."""
        return torch.cat([naive.attention(*row, self.weight, self.shape) for row in self.rows])


def make_case(
    rows: Rows, shape: LatentShape = SHAPE, heads: int = 4, dtype: str = "float32"
) -> Case:
    """Make a case with poison after each row's context, as in `tests.kernels.cases`."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    contexts = [context for _, context in rows]
    most = -(-max(contexts) // BLOCK_SIZE)
    tables = torch.randperm(len(rows) * most, generator=generator).int().view(len(rows), most)
    group = KvGroup((0, 1), 1, shape.latent, dtype, scale_bytes=32, has_values=False)
    pool = DevicePool(KvLayout((group,), BLOCK_SIZE), len(rows) * most, torch.device("cpu"))
    kv = pool.layers[1]
    if dtype != FP8:
        kv.fill_(torch.nan)
    plain = []
    for table, (new, context) in zip(tables, rows, strict=True):
        latents = drawn(context, shape.latent)
        place = torch.arange(context)
        slots = table[place // BLOCK_SIZE].long() * BLOCK_SIZE + place % BLOCK_SIZE
        if dtype == FP8:
            fp8_kv.write(kv, slots, latents[:, None, None])
            latents = fp8_kv.dequantised(kv, table.long()).view(-1, shape.latent)[:context]
        else:
            kv[slots // BLOCK_SIZE, :, :, slots % BLOCK_SIZE] = latents[:, None, None].to(kv.dtype)
        behind = table[-(-context // BLOCK_SIZE) :]
        garbage = torch.tensor(NO_BLOCK_IDS, dtype=torch.int32)
        behind.copy_(garbage.repeat(len(behind))[: len(behind)])
        plain.append((drawn(new, heads, shape.head_dim), latents))
    decodes = next((i for i, (new, _) in enumerate(rows) if new != 1), len(rows))
    layout = make_layout(rows, tables, BLOCK_SIZE, decodes)
    weight = drawn(heads, shape.nope + shape.values, shape.rank) * shape.rank**-0.5
    return Case(torch.cat([q for q, _ in plain]), kv, weight, layout, shape, tuple(plain))


def attend(ops: Ops, case: Case) -> Tensor:
    with poisoned_memory():
        return ops.latent_attention(case.q, case.kv, case.weight, case.layout, case.shape)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shape", [SHAPE, WIDE])
def test_batches(ops: Ops, batch: str, shape: LatentShape) -> None:
    case = make_case(BATCHES[batch], shape)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("heads", [1, 5, 20, 48])
def test_any_number_of_heads(ops: Ops, heads: int) -> None:
    case = make_case([(1, 18), (1, 2), (5, 21)], heads=heads)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("batch", ["decodes", "mixed"])
def test_latents_in_fp8(ops: Ops, batch: str) -> None:
    case = make_case(BATCHES[batch], dtype=FP8)
    assert case.kv.dtype == E4M3
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", FP8])
def test_many_new_tokens_are_attended_by_keys_and_values_made_for_them(
    ops: Ops, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expand the latents of many new tokens to keys and values.

    The threshold is lower here than in a step. Positive control: the absorbed path is not used.
    """
    monkeypatch.setattr(expanded, "LEAST_TOKENS", 8)
    case = make_case([(1, 30), (1, 5), (90, 100), (100, 100)], dtype=dtype)
    assert expanded.pays(case.layout, 190, SHAPE)
    launched: list[Any] = []
    usual = attend_latents.launch

    def noted(*args: Any) -> Tensor:
        launched.append(args[-2:])
        return usual(*args)

    monkeypatch.setattr(attend_latents, "launch", noted)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5
    assert launched in ([], [(0, 2)]), "only the decodes absorb; the reference has its own ways"


def test_a_row_without_a_context_gives_zeros(ops: Ops) -> None:
    case = make_case([(1, 40), (1, 20)])
    case.layout.context_lens[1] = 0
    got = attend(ops, case)
    assert not got[1].any()
    assert relative_error(got[:1], case.truth()[:1]) < 1e-5


def test_both_ways_are_taken_where_they_take_fewer_products() -> None:
    flash = LatentShape(nope=192, rope=64, values=256, rank=512, scale=1.0)
    assert flash.absorbs(1, 8000)
    assert flash.absorbs(100, 8000)
    assert not flash.absorbs(1000, 8000)
    assert not flash.absorbs(64, 64), "of few keys each is read as often as by decodes"


def test_sizes_without_a_kernel_are_refused(ops: Ops) -> None:
    case = make_case([(1, 4)])
    for shape in (replace(SHAPE, rank=40), replace(SHAPE, rope=24), replace(SHAPE, values=600)):
        with pytest.raises(UnsupportedShape):
            attend(ops, replace(case, shape=shape))


def attend_on_device(case: Case) -> Tensor:
    from kernels.ops import triton_ops

    moved = {
        name: getattr(case.layout, name).cuda()
        for name in ("query_starts", "context_lens", "block_tables", "positions", "slots")
    }
    on_device = replace(
        case,
        q=case.q.cuda(),
        kv=case.kv.cuda(),
        weight=case.weight.cuda(),
        layout=replace(case.layout, **moved),
    )
    return attend(triton_ops(), on_device).cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("batch", BATCHES)
def test_on_the_device_as_in_the_reference(batch: str) -> None:
    case = make_case(BATCHES[batch], replace(WIDE, rank=512, rope=64), heads=20)
    assert relative_error(attend_on_device(case), attend(torch_ops(), case)) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [*BATCHES, "long"])
@pytest.mark.parametrize(("heads", "rank"), [(20, 512), (128, 512), (40, 256), (3, 256)])
def test_sixteen_bits_on_the_device_as_in_the_reference(batch: str, heads: int, rank: int) -> None:
    """On Hopper, the kernel with TMA computes these cases."""
    rows = BATCHES.get(batch, [(1, 2000), (1, 64), (1, 4097), (5, 3000), (70, 1111)])
    case = make_case(rows, replace(WIDE, rank=rank, rope=64, scale=0.05), heads, "bfloat16")
    case = replace(case, q=case.q.bfloat16(), weight=case.weight.bfloat16())
    wide = [(q.bfloat16().double(), latents.bfloat16().double()) for q, latents in case.rows]
    truth = replace(case, rows=tuple(wide), weight=case.weight.double()).truth()
    assert relative_error(attend_on_device(case), truth) < 0.01
