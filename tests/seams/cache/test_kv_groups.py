"""Blocks of layers with two KV shapes come back from all tiers, also after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.attention.variant import AttentionVariant
from kernels.ops import Ops, torch_ops, triton_ops
from storage.disk.tier import DiskTier
from storage.layouts.kv_layout import KvGroup, KvLayout
from storage.move import Move, Tier
from storage.pools.device_pool import DevicePool, Mover
from storage.pools.host_pool import HostPool
from storage.tier_mover import TierMover, block_bytes_of
from tests.engine.rigs.origins import ORIGIN
from tests.kernels.cases import Geometry, make_case
from tests.storage.scene import CPU, disk_config, finish, plan

FULL = KvGroup(layers=(0, 2), num_kv_heads=2, head_dim=8, dtype="float32")
WINDOW = KvGroup(layers=(1,), num_kv_heads=1, head_dim=16, dtype="bfloat16", window=32)
TWO = KvLayout((FULL, WINDOW), block_size=16)
SCALED = replace(TWO, groups=(replace(FULL, scale_bytes=20), WINDOW))
SHAPES = [(2, 2, 16, 8), (2, 1, 16, 16), (2, 2, 16, 8)]
BLOCKS = 6
ALL = [(i, i) for i in range(BLOCKS)]

every_ops = pytest.mark.parametrize("ops", [torch_ops, triton_ops])


def written(number: int, layer: int, view: Tensor) -> Tensor:
    """Make the content of block `number` in `layer`, different from that of any other block."""
    generator = torch.Generator().manual_seed(100 * number + layer)
    return torch.randn(view.shape[1:], generator=generator).to(view.dtype)


def fill(pool: DevicePool) -> None:
    """Write every block through its layers' views, as a model does, with random scales."""
    generator = torch.Generator().manual_seed(7)
    flat = block_bytes_of(pool)
    flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=generator))
    for layer, view in enumerate(pool.layers):
        for block in range(pool.num_blocks):
            view[block] = written(block, layer, view)


def is_block(pool: DevicePool, block: int, number: int, as_filled: Tensor) -> bool:
    """Return whether a block equals block `number`, byte by byte and layer by layer."""
    return torch.equal(block_bytes_of(pool)[block], as_filled[number]) and all(
        torch.equal(view[block], written(number, layer, view))
        for layer, view in enumerate(pool.layers)
    )


@dataclass
class Tiers:
    """A filled device pool, a host pool and a disk."""

    pool: DevicePool
    disk: DiskTier
    mover: TierMover
    as_filled: Tensor

    def move(self, source: Tier, target: Tier, pairs: list[tuple[int, int]]) -> int:
        """Move blocks; return the number of moves, none of which may fail."""
        self.mover.start(plan(source, target, pairs))
        settled = finish(self.mover, self.disk)
        assert not settled.failed
        return len(settled.done)

    def clear(self) -> None:
        self.pool.tensor.zero_()
        assert not any(view.any() for view in self.pool.layers)


@contextmanager
def tiers_of(layout: KvLayout, directory: Path) -> Iterator[Tiers]:
    pool, host = DevicePool(layout, BLOCKS, CPU), HostPool(BLOCKS, layout.block_bytes, CPU)
    fill(pool)
    config = disk_config(
        directory,
        block_bytes=layout.block_bytes,
        fingerprint=replace(ORIGIN, kv=layout).fingerprint(),
    )
    disk = DiskTier(config, host)
    mover = TierMover(pool, host, disk)
    yield Tiers(pool, disk, mover, block_bytes_of(pool).clone())
    mover.close()
    disk.close()
    host.close()


layouts = pytest.mark.parametrize("layout", [TWO, SCALED], ids=["plain", "with-scales"])


@layouts
def test_each_layer_has_its_own_shape_and_bytes(layout: KvLayout) -> None:
    pool = DevicePool(layout, BLOCKS, CPU)
    assert [tuple(view.shape) for view in pool.layers] == [(BLOCKS, *shape) for shape in SHAPES]
    assert [view.dtype for view in pool.layers] == [torch.float32, torch.bfloat16, torch.float32]
    for layer, view in enumerate(pool.layers):
        pool.tensor.zero_()
        view.fill_(1.0)
        touched = block_bytes_of(pool).any(0).nonzero().flatten()
        begin, end = layout.offset(layer), layout.offset(layer + 1)
        assert begin <= touched.min() <= touched.max() < end
        others = [other for other in range(3) if other != layer]
        assert not any(pool.layers[other].any() for other in others)


@every_ops
@layouts
def test_a_block_is_copied_within_the_device(layout: KvLayout, ops: Callable[[], Ops]) -> None:
    pool = DevicePool(layout, BLOCKS, CPU)
    fill(pool)
    as_filled = block_bytes_of(pool).clone()
    moves = [Move(Tier.DEVICE, a, Tier.DEVICE, b) for a, b in ((1, 4), (0, 5), (4, 2))]
    Mover(pool, ops().copy_blocks).execute(moves)
    for block, number in enumerate([0, 1, 1, 3, 1, 0]):
        assert is_block(pool, block, number, as_filled)


@layouts
def test_blocks_come_back_from_the_host(layout: KvLayout, tmp_path: Path) -> None:
    with tiers_of(layout, tmp_path) as tiers:
        assert tiers.move(Tier.DEVICE, Tier.HOST, [(i, BLOCKS - 1 - i) for i, _ in ALL]) == BLOCKS
        tiers.clear()
        assert tiers.move(Tier.HOST, Tier.DEVICE, ALL) == BLOCKS
        for block in range(BLOCKS):
            assert is_block(tiers.pool, block, BLOCKS - 1 - block, tiers.as_filled)


@layouts
@pytest.mark.parametrize("way", [Tier.DEVICE, Tier.HOST], ids=["from-device", "from-host"])
def test_blocks_come_back_from_the_disk(layout: KvLayout, way: Tier, tmp_path: Path) -> None:
    with tiers_of(layout, tmp_path) as tiers:
        if way is Tier.HOST:
            tiers.move(Tier.DEVICE, Tier.HOST, ALL)
        assert tiers.move(way, Tier.DISK, ALL) == BLOCKS
        tiers.clear()
        assert tiers.move(Tier.DISK, Tier.DEVICE, ALL) == BLOCKS
        for block in range(BLOCKS):
            assert is_block(tiers.pool, block, block, tiers.as_filled)
        assert tiers.disk.stats.records == BLOCKS, "one record a block, of all groups"


OTHERS = {
    "other-order": KvLayout(
        (replace(FULL, layers=(0, 1)), replace(WINDOW, layers=(2,))), TWO.block_size
    ),
    "other-window": replace(TWO, groups=(FULL, replace(WINDOW, window=64))),
    "other-dtype": replace(TWO, groups=(FULL, replace(WINDOW, dtype="float16"))),
    "other-heads": replace(TWO, groups=(FULL, replace(WINDOW, num_kv_heads=2, head_dim=8))),
}


def test_the_disk_of_before_is_found_again(tmp_path: Path) -> None:
    with tiers_of(TWO, tmp_path) as before:
        assert before.move(Tier.DEVICE, Tier.DISK, ALL) == BLOCKS
    with tiers_of(TWO, tmp_path) as tiers:
        assert [slot for slot, _ in tiers.disk.scan()] == list(range(BLOCKS))
        tiers.clear()
        assert tiers.move(Tier.DISK, Tier.DEVICE, ALL) == BLOCKS
        for block in range(BLOCKS):
            assert is_block(tiers.pool, block, block, tiers.as_filled)


@pytest.mark.parametrize("other", OTHERS)
def test_the_disk_of_another_layout_is_empty_although_its_blocks_are_as_long(
    other: str, tmp_path: Path
) -> None:
    assert OTHERS[other].block_bytes == TWO.block_bytes
    with tiers_of(TWO, tmp_path) as before:
        before.move(Tier.DEVICE, Tier.DISK, ALL)
    with tiers_of(OTHERS[other], tmp_path) as tiers:
        assert list(tiers.disk.scan()) == []
        assert tiers.move(Tier.DISK, Tier.DEVICE, ALL) == 0


@every_ops
def test_attention_reads_a_layer_beside_others_unlike_it(ops: Callable[[], Ops]) -> None:
    geometry = Geometry(4, 2, 32, 16, torch.float32, "cpu")
    case = make_case(geometry, [(1, 40), (9, 30)])
    unlike = KvGroup(layers=(0, 2), num_kv_heads=1, head_dim=16, dtype="bfloat16")
    layout = KvLayout((unlike, KvGroup((1,), 2, 32, "float32")), 16)
    pool = DevicePool(layout, case.kv.shape[0], CPU)
    pool.tensor.fill_(torch.nan)
    pool.layers[1].copy_(case.kv)
    attend, how = ops().paged_attention, (AttentionVariant(0.2), None)
    alone = attend(case.q, case.kv, case.layout, *how)
    assert torch.equal(attend(case.q, pool.layers[1], case.layout, *how), alone)
    assert alone.isfinite().all()
