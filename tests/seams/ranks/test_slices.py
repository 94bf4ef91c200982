"""The joined slices of two ranks equal the blocks of one rank, bit for bit, in every tier.

One tree plans for all ranks. Each rank has its slice of every block in its own pools and disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.ops import torch_ops
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from storage.disk.tier import DiskTier
from storage.layouts.kv_layout import KvGroup, KvLayout
from storage.move import Move, Plan, Tier
from storage.pools.device_pool import DevicePool, Mover, layer_views
from storage.pools.host_pool import HostPool
from storage.tier_mover import TierMover
from tests.engine.rigs.origins import ORIGIN
from tests.storage.scene import CPU, disk_config, finish, plan

BLOCK_SIZE = 4
FULL = KvGroup(layers=(0, 2), num_kv_heads=2, head_dim=8, dtype="float32")
WINDOW = KvGroup(layers=(1,), num_kv_heads=4, head_dim=16, dtype="bfloat16", window=32)
WHOLE = KvLayout((FULL, WINDOW), BLOCK_SIZE)
HALVES = [WHOLE.slice_of(rank, 2) for rank in range(2)]
DEVICE_BLOCKS, HOST_BLOCKS, DISK_BLOCKS = 7, 5, 40
PATH = NamespacePath.single(Namespace(b"n" * 16))

A, B, C = (np.arange(first, first + 18, dtype=np.int32) for first in (100, 200, 300))
LIKE_A = np.concatenate([A[:10], C[:8]])  # equals A up to the middle of the third block
TRAFFIC = [A, A, B, B, C, C, A, LIKE_A, LIKE_A, B, C, A]
WAYS = {
    (Tier.DEVICE, Tier.DEVICE), (Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DISK),
    (Tier.HOST, Tier.DEVICE), (Tier.DISK, Tier.DEVICE),
}  # fmt: skip


class Rank:
    """A rank's tiers: pools and a disk for the heads in its layout."""

    def __init__(self, layout: KvLayout, directory: Path) -> None:
        self.layout = layout
        self.pool = DevicePool(layout, DEVICE_BLOCKS, CPU)
        self.host = HostPool(HOST_BLOCKS, layout.block_bytes, CPU)
        fingerprint = replace(ORIGIN, kv=layout).fingerprint()
        config = disk_config(directory, block_bytes=layout.block_bytes, fingerprint=fingerprint)
        self.disk = DiskTier(config, self.host)
        self.mover = TierMover(self.pool, self.host, self.disk)
        self.within = Mover(self.pool, torch_ops().copy_blocks)

    def carry_out(self, asked: Plan) -> set[Move]:
        """Carry out every move of the plan, wait for their ends, and return the moves made."""
        self.mover.start(asked)
        return set(finish(self.mover, self.disk).done)

    def compute(self, ids: TokenIds, position: int, block: int) -> None:
        """Write this rank's keys and values of one token."""
        for layer, view in enumerate(self.pool.layers):
            kv = kv_of(ids, position, layer).chunk(ranks_of(self.layout), dim=1)
            view[block, :, :, position % BLOCK_SIZE] = kv[rank_of(self.layout)]

    def close(self) -> None:
        self.mover.close()
        self.disk.close()
        self.host.close()


class Run:
    """A cache whose plans all `ranks` carry out."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.ranks = ranks
        self.moves: list[Move] = []  # all moves so far
        self.num_loaded = 0  # number of tokens found in the cache
        self.cache = PrefixCache(
            num_blocks=DEVICE_BLOCKS,
            block_size=BLOCK_SIZE,
            tiers=Tiers(host_blocks=HOST_BLOCKS, disk_blocks=DISK_BLOCKS),
        )
        self._now = 0.0

    def serve(self, ids: TokenIds) -> None:
        """Serve a request: check the cached part, and compute the rest."""
        lease = self._lease(ids)
        for rank in self.ranks:
            rank.within.execute(lease.moves)
        self.moves += lease.moves
        self.num_loaded += lease.cached_tokens
        for position in range(len(ids)):
            block = int(lease.blocks[position // BLOCK_SIZE])
            if position >= lease.cached_tokens:
                for rank in self.ranks:
                    rank.compute(ids, position, block)
            for layer, view in enumerate(self.joined(Tier.DEVICE)):
                kv = view[block, :, :, position % BLOCK_SIZE]
                assert torch.equal(kv, kv_of(ids, position, layer)), (position, layer)
        keys = block_keys(PATH, ids, BLOCK_SIZE)
        self.cache.commit(lease, ids, len(ids), keys, now=self._now)
        self.cache.release(lease, now=self._now)
        self.copy()

    def joined(self, tier: Tier) -> list[Tensor]:
        """Return each layer of all slots of a tier, with the heads of all ranks."""
        views = [
            layer_views(rank.pool.tensor if tier is Tier.DEVICE else rank.host.tensor, rank.layout)
            for rank in self.ranks
        ]
        return [torch.cat(of_layer, dim=2) for of_layer in zip(*views, strict=True)]

    def copy(self) -> None:
        """Carry out the plans; a move has ended once every rank has made it."""
        asked = self.cache.moves.take_plan()
        for rank in self.ranks:
            assert rank.carry_out(asked) == set(asked.moves)
        self.moves += asked.moves
        self.cache.moves.complete(done=asked.moves)
        self.cache.check_invariants()

    def save(self) -> None:
        """Save everything that can be saved before a stop."""
        while self.cache.restart.save(DISK_BLOCKS):
            self.copy()

    def restore(self) -> int:
        """Restore an earlier run's blocks from disk, where all ranks use the same slots."""
        found = [list(rank.disk.scan()) for rank in self.ranks]
        assert all(one == found[0] for one in found)
        return self.cache.restart.restore(found[0], now=self._now)

    def _lease(self, ids: TokenIds) -> Lease:
        lease: Lease | None = None
        for _ in range(10):
            self._now += 1.0
            lease = lease or self.cache.acquire(PATH, ids, owner="flow", now=self._now)
            if lease is not None and lease.ready:
                return lease
            self.copy()
        raise AssertionError("no room although nothing else runs")


def kv_of(ids: TokenIds, position: int, layer: int) -> Tensor:
    """Return a token's keys and values in a layer, for all heads: (2, kv heads, head dim)."""
    generator = torch.Generator().manual_seed(100 * crc32(ids[: position + 1].tobytes()) + layer)
    group = WHOLE.group_of(layer)
    numbers = torch.randn(2, group.num_kv_heads, group.head_dim, generator=generator)
    dtype: torch.dtype = getattr(torch, group.dtype)
    return numbers.to(dtype)


def rank_of(layout: KvLayout) -> int:
    return 0 if layout.slice is None else layout.slice.rank


def ranks_of(layout: KvLayout) -> int:
    return 1 if layout.slice is None else layout.slice.num_ranks


@contextmanager
def run_on(layouts: Sequence[KvLayout], directory: Path) -> Iterator[Run]:
    """Make a run with a rank for each layout, each with its own directory."""
    with ExitStack() as stack:
        ranks = []
        for layout in layouts:
            home = directory / f"{rank_of(layout)}-of-{ranks_of(layout)}"
            ranks.append(stack.enter_context(closing(Rank(layout, home))))
        yield Run(ranks)


def expect_alike(halves: Run, whole: Run) -> None:
    """Check that the same moves were made, and that every slot has the same bits."""
    assert halves.moves == whole.moves
    for tier in (Tier.DEVICE, Tier.HOST):
        for joined, expected in zip(halves.joined(tier), whole.joined(tier), strict=True):
            assert torch.equal(joined.view(torch.uint8), expected.view(torch.uint8)), tier


def test_two_halves_joined_are_the_whole_through_every_tier_and_a_restart(tmp_path: Path) -> None:
    with run_on(HALVES, tmp_path) as halves, run_on([WHOLE], tmp_path) as whole:
        for ids in TRAFFIC:
            halves.serve(ids)
            whole.serve(ids)
            expect_alike(halves, whole)
        assert {(move.source_tier, move.target_tier) for move in halves.moves} >= WAYS
        halves.save()
        whole.save()
        expect_alike(halves, whole)
    with run_on(HALVES, tmp_path) as halves, run_on([WHOLE], tmp_path) as whole:
        assert halves.restore() == whole.restore() > 0
        for ids in (A, LIKE_A, B, C):
            halves.serve(ids)
            whole.serve(ids)
            expect_alike(halves, whole)
        assert halves.num_loaded == whole.num_loaded >= 3 * 16, "they came from disk"


TWICE_THE_HEADS = KvLayout((replace(FULL, num_kv_heads=4), replace(WINDOW, num_kv_heads=8)), 4)
OTHERS = {
    "the other rank": HALVES[1],
    "of more ranks": TWICE_THE_HEADS.slice_of(0, 4),
    "of one rank": replace(HALVES[0], slice=None),
}
ALL = [(i, i) for i in range(5)]


def write_first_half(directory: Path) -> Tensor:
    """Fill the disk of rank 0 of 2; return the contents of its blocks."""
    with closing(Rank(HALVES[0], directory)) as rank:
        rank.pool.layers[0].copy_(torch.randn(rank.pool.layers[0].shape))
        assert len(rank.carry_out(plan(Tier.DEVICE, Tier.DISK, ALL))) == len(ALL)
        return rank.pool.tensor[: len(ALL)].clone()


def test_a_rank_finds_its_own_slices_again(tmp_path: Path) -> None:
    written = write_first_half(tmp_path)
    with closing(Rank(HALVES[0], tmp_path)) as rank:
        assert [slot for slot, _ in rank.disk.scan()] == [slot for slot, _ in ALL]
        assert len(rank.carry_out(plan(Tier.DISK, Tier.DEVICE, ALL))) == len(ALL)
        assert torch.equal(rank.pool.tensor[: len(ALL)], written)


@pytest.mark.parametrize("other", OTHERS)
def test_no_rank_reads_anothers_slices_although_they_are_as_long(
    other: str, tmp_path: Path
) -> None:
    assert OTHERS[other].block_bytes == HALVES[0].block_bytes
    write_first_half(tmp_path)
    with closing(Rank(OTHERS[other], tmp_path)) as rank:
        assert list(rank.disk.scan()) == []
        assert rank.carry_out(plan(Tier.DISK, Tier.DEVICE, ALL)) == set()
        assert not rank.pool.tensor.any()
