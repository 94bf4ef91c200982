"""Keys and values in fp8 are rounded by at most half a step.

Attention equals attention over the rounded numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention import paged_attention
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv import fp8_kv
from kernels.attention.prefill import prefill_attention
from kernels.attention.prefill.widen_kv import MAX_WIDENED, widen
from kernels.attention.tuning import decode_tuning
from kernels.attention.variant import AttentionVariant
from kernels.e4m3 import E4M3, LARGEST
from kernels.limits import KV_SCALE_BYTES
from kernels.ops import Ops, torch_ops, triton_ops
from storage.layouts.kv_layout import FP8, KvGroup, KvLayout
from storage.pools.device_pool import empty_blocks, layer_views
from tests.kernels import naive
from tests.kernels.cases import poisoned_memory, relative_error

HEADS, KV_HEADS, DIM, SIZE, LAYERS = 4, 2, 32, 16, 3
STEP = 2.0**-3
# number of new tokens, length of the context
ROWS = [(1, 5), (1, 16), (1, 47), (3, 3), (20, 20), (7, 40), (1, 33)]


def layout_of(heads: int = KV_HEADS, dim: int = DIM, layers: int = LAYERS) -> KvLayout:
    scale_bytes = 2 * heads * SIZE * KV_SCALE_BYTES
    group = KvGroup(tuple(range(layers)), heads, dim, FP8, scale_bytes=scale_bytes)
    return KvLayout((group,), SIZE)


def pool_of(num_blocks: int, layout: KvLayout, device: str = "cpu") -> tuple[Tensor, ...]:
    return layer_views(empty_blocks(layout, num_blocks, torch.device(device)), layout)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Draw heads of several magnitudes: one has only zeros, one has a number far above its
    others.
    """
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    x *= torch.logspace(-3, 2, shape[0]).view(-1, *[1] * (len(shape) - 1))
    x[-1], x[0, ..., 3] = 0.0, 50.0
    return x


def test_a_head_is_kept_to_half_a_step_and_none_is_cut_off() -> None:
    x = draw(9, 2, KV_HEADS, DIM)
    values, scales = fp8_kv.quantised(x)
    kept = values.float() * scales.float()[..., None]
    assert scales.dtype == torch.bfloat16
    least = scales.float()[..., None] * 2.0**-9
    assert ((kept - x).abs() <= x.abs() * (STEP / 2) * 1.0001 + least).all()
    largest = values.float().abs().amax(-1)[:-1]
    assert (largest <= LARGEST).all()
    assert (largest > LARGEST * 0.96).all(), "a scale is rounded up by 2^-7 at most"
    assert (values[-1].float() == 0).all()


def test_a_layer_has_its_numbers_and_then_its_scales() -> None:
    layout = layout_of()
    blocks = empty_blocks(layout, 2, torch.device("cpu"))
    views = layer_views(blocks, layout)
    assert blocks.dtype == torch.uint8
    numbers = 2 * KV_HEADS * SIZE * DIM
    assert layout.block_bytes == LAYERS * (numbers + 2 * 2 * KV_HEADS * SIZE)
    fp8_kv.scales_of(views[1])[1, 1, 0, 5] = 1.0
    views[1].view(torch.uint8)[1, 1, 0, 5, 7] = 9
    first = layout.block_bytes // LAYERS
    values = KV_HEADS * SIZE
    assert blocks[1].nonzero().flatten().tolist() == [
        first + values * DIM + 5 * DIM + 7,
        first + numbers + 2 * (values + 5),
        first + numbers + 2 * (values + 5) + 1,
    ]


def test_twice_the_tokens_but_for_the_scales() -> None:
    plain = KvLayout((KvGroup(tuple(range(32)), 8, 128, "bfloat16"),), SIZE)
    assert plain.block_bytes / layout_of(8, 128, 32).block_bytes > 1.96


def written(ops: Ops, qkv: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    pool = pool_of(4, layout_of())
    still = torch.cat((torch.ones(1, DIM // 2), torch.zeros(1, DIM // 2)), 1)
    q = ops.rope_write_kv(
        qkv, slots * 0, still, None, None, 1e-5, pool[1], slots, HEADS, torch.float32
    )
    assert not pool[0].float().any()
    assert not pool[2].float().any()
    return q, pool[1]


def test_keys_and_values_are_written_to_their_slots(ops: Ops) -> None:
    slots = torch.tensor([5, 0, 63, 31, 16])
    heads = draw(5, HEADS + 2 * KV_HEADS, DIM)
    q, kv = written(ops, heads.flatten(1), slots)
    assert torch.equal(q, heads[:, :HEADS])
    values, scales = fp8_kv.quantised(heads[:, HEADS:].view(5, 2, KV_HEADS, DIM))
    block, place = slots // SIZE, slots % SIZE
    torch.testing.assert_close(fp8_kv.scales_of(kv)[block, :, :, place], scales)
    got = kv.view(torch.uint8)[block, :, :, place].view(E4M3).float()
    # The interpreter loses the carry of a number that is rounded up to a power of two.
    near = (got - values.float()).abs() <= values.float().abs() * STEP + 2.0**-9
    assert (near | (got * 2 == values.float())).all()
    assert near.float().mean() > 0.95
    others = torch.ones(64, dtype=torch.bool)
    others[slots] = False
    assert not fp8_kv.scales_of(kv).transpose(1, 3).flatten(0, 1)[others].any()


How = tuple[AttentionVariant, Tensor | None]


class Filled:
    """Rows over an fp8 pool with known numbers."""

    def __init__(
        self, device: str, heads: int, kv_heads: int, dim: int, dtype: torch.dtype
    ) -> None:
        contexts = [context for _, context in ROWS]
        most = -(-max(contexts) // SIZE)
        tables = torch.randperm(len(ROWS) * most).view(len(ROWS), most)
        kv = pool_of(len(ROWS) * most, layout_of(kv_heads, dim), device)[1]
        self.kv = kv
        self.how: How = (AttentionVariant(1 / math.sqrt(dim)), None)
        numbers = torch.randn(kv.shape, device=device)
        numbers[..., :2] *= 20  # real keys have outlier channels like these
        values, scales = fp8_kv.quantised(numbers)
        kv.view(torch.uint8).copy_(values.view(torch.uint8))
        fp8_kv.scales_of(kv).copy_(scales)
        news = [new for new, _ in ROWS]
        self.q = torch.randn(sum(news), heads, dim, device=device).to(dtype)
        starts = torch.tensor([0, *news]).cumsum(0)
        self.layout = BatchLayout(
            query_starts=starts.int().to(device),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=tables.int().to(device),
            positions=torch.zeros(sum(news), dtype=torch.int64, device=device),
            slots=torch.zeros(sum(news), dtype=torch.int64, device=device),
            num_decodes=3,
            max_context_len=max(contexts),
        )

    def truth(self) -> Tensor:
        """Return attention (T, Hq, D) float64 over the dequantised numbers."""
        outs = []
        for row, (_, context) in enumerate(ROWS):
            blocks = self.layout.block_tables[row].long()
            wide = fp8_kv.dequantised(self.kv, blocks).double().cpu()
            keys, values = wide.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context]
            first, last = self.layout.query_starts[row : row + 2].tolist()
            q = self.q[first:last].double().cpu()
            outs.append(naive.attention(q, keys.transpose(0, 1), values.transpose(0, 1), *self.how))
        return torch.cat(outs)


@pytest.mark.parametrize("dim", [DIM, 24])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_attention_is_over_the_numbers_written_out(
    ops: Ops, dtype: torch.dtype, error: float, dim: int
) -> None:
    case = Filled("cpu", HEADS, KV_HEADS, dim, dtype)
    got = ops.paged_attention(case.q, case.kv, case.layout, *case.how)
    assert relative_error(got, case.truth()) < error


@pytest.mark.parametrize("size", [1e-6, 1e2])
def test_values_of_any_size_are_as_exact(ops: Ops, size: float) -> None:
    """Keep the accuracy at any magnitude.

    Numbers that are read in pairs carry a power of two, which must stay within the dtype's range.
    """
    case = Filled("cpu", HEADS, KV_HEADS, DIM, torch.float16)
    fp8_kv.scales_of(case.kv)[:, 1] *= size
    got = ops.paged_attention(case.q, case.kv, replace(case.layout), *case.how)
    assert relative_error(got[:3], case.truth()[:3]) < (2e-3 if size > 1 else 3e-2)


@pytest.mark.parametrize("window", [None, 20])
def test_with_all_that_attention_may_have_beside(ops: Ops, window: int | None) -> None:
    case = Filled("cpu", HEADS, KV_HEADS, DIM, torch.float32)
    case.how = AttentionVariant(0.2, window, softcap=3.0), torch.linspace(-3.0, 6.0, HEADS)
    got = ops.paged_attention(case.q, case.kv, case.layout, *case.how)
    assert relative_error(got, case.truth()) < 1e-5


def test_scales_matter() -> None:
    """Drop the scales (positive control): attention has another result."""
    case = Filled("cpu", HEADS, KV_HEADS, DIM, torch.float32)
    fp8_kv.scales_of(case.kv)[:, 1] *= 2
    got = paged_attention.reference(case.q, case.kv, case.layout, *case.how)
    fp8_kv.scales_of(case.kv)[:, 1] /= 2
    assert relative_error(got, 2 * case.truth()) < 1e-5


def test_a_copy_of_what_prompts_read(ops: Ops) -> None:
    if ops == torch_ops():
        pytest.skip("only kernels copy")
    case = Filled("cpu", HEADS, KV_HEADS, DIM, torch.float32)
    wide, layout = widen(case.kv, case.layout, torch.float32)
    assert wide.shape[0] == 4 * 3, "rows by blocks of the longest"
    out = torch.full_like(case.q, torch.nan)
    prefill_attention.launch(case.q, wide, layout, *case.how, out)
    assert out[:3].isnan().all(), "decodes are left"
    assert relative_error(out[3:], case.truth()[3:]) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(32, 8, 128), (8, 8, 64), (16, 1, 80)], ids=str)
@pytest.mark.parametrize("widened", [True, False])
def test_attention_on_the_device(shape: tuple[int, int, int], widened: bool) -> None:
    case = Filled("cuda", *shape, torch.bfloat16)
    # Change only the longest context that the layout announces, which decides what is copied.
    longest = case.layout.max_context_len if widened else MAX_WIDENED
    layout = replace(case.layout, max_context_len=longest)
    with poisoned_memory():
        got = triton_ops().paged_attention(case.q, case.kv, layout, *case.how)
    assert relative_error(got, case.truth().cuda()) < 2e-2


@pytest.mark.gpu
def test_bytes_on_the_device_are_those_of_the_reference() -> None:
    layout = layout_of(8, 128)
    ours, theirs = pool_of(8, layout, "cuda"), pool_of(8, layout, "cuda")
    qkv = torch.randn(40, 48 * 128, device="cuda").bfloat16()
    slots = torch.randperm(128, device="cuda")[:40]
    still = torch.cat((torch.ones(1, 64), torch.zeros(1, 64)), 1).cuda()
    for kv, ops in ((ours[1], triton_ops()), (theirs[1], torch_ops())):
        ops.rope_write_kv(qkv, slots * 0, still, None, None, 1e-5, kv, slots, 32, torch.bfloat16)
    assert torch.equal(ours[1].view(torch.uint8), theirs[1].view(torch.uint8))
    assert torch.equal(fp8_kv.scales_of(ours[1]), fp8_kv.scales_of(theirs[1]))


def test_more_keys_fit_a_tile() -> None:
    plain, fp8 = decode_tuning(128, torch.bfloat16), decode_tuning(128, E4M3)
    assert fp8.tile == 2 * plain.tile
