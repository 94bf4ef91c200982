"""The opening of the tiers below the device: host memory, disk, and the mover between tiers.

If a tier cannot be opened, the engine serves without it. This is logged and shown in the stats.

Elsewhere: the tiers themselves (`storage`), and the choice of a block's tier (`prefix_cache`).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.ranks.groups import RankGroups
from engine.startup.device import host_bytes
from engine.startup.memory.pool_size import (
    ALL,
    below,
    blocks_ahead,
    cache_ratio,
    host_blocks,
    host_free_beside_weights,
)
from engine.tier_interfaces import LowerTiers
from prefix_cache.tiers.tier_pools import Tiers
from storage import tier_mover
from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.errors import DiskUnavailable, PoolDoesNotFit
from storage.move import StateSlots, Tier
from storage.pools.device_pool import DevicePool
from storage.pools.host_pool import HostPool
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool

GIB = 1 << 30
RANK_PREFIX = "rank-"  # name prefix of the directories of all ranks except 0

_log = logging.getLogger(__name__)

NewHostPool = Callable[[int, int, torch.device, int], HostPool]
"""A function that allocates a pool. Raises PoolDoesNotFit.

Its arguments: number of blocks, bytes of a block, device, maximum bytes to allocate.
"""

HostAhead = Future[HostPool | None]  # the host tier that a thread is opening; None: no host tier


@contextmanager
def host_ahead(
    config: EngineConfig,
    block_bytes: int,
    device: torch.device,
    new_pool: NewHostPool = HostPool,
    share: Fraction = ALL,
    state_blocks: int = 0,
) -> Iterator[HostAhead | None]:
    """Open the host tier of `config` in a thread. Close the tier when the context ends.

    Each of several ranks has its `share` of the tier. `state_blocks` is as in `pool_size.below`.

    Clearing and pinning 31 GiB takes about as long as loading a model and capturing its graphs.
    Both are therefore done at the same time. On a CPU, yield None: weights and pool take the same
    memory as the tier, so its size is known only after loading.
    """
    if device.type != "cuda":
        yield None
        return
    free = host_free_beside_weights(config, host_bytes(config.process.host_memory_bytes))
    num_blocks = host_blocks(
        config, block_bytes, on_cuda=True, free=free, share=share, state_blocks=state_blocks
    )
    with ThreadPoolExecutor(1, thread_name_prefix="host-tier") as thread:
        made = thread.submit(_made, new_pool, num_blocks, block_bytes, device, free)
        try:
            yield made
        finally:
            if made.exception() is None and (pool := made.result()) is not None:
                pool.close()


def _made(
    new_pool: NewHostPool, num_blocks: int, block_bytes: int, device: torch.device, free: int
) -> HostPool | None:
    return new_pool(num_blocks, block_bytes, device, free) if num_blocks else None


@dataclass(frozen=True, slots=True)
class OpenTiers:
    """The opened tiers, to be closed when the engine ends."""

    lower: LowerTiers
    host: HostPool | None
    disk: DiskTier | None

    def close(self) -> None:
        """End copies, wait until pending writes are on disk, and free the tiers' memory."""
        self.lower.mover.close()
        if self.disk is not None:
            self.disk.close()
        if self.host is not None:
            self.host.close()


def open_tiers(
    config: EngineConfig,
    pool: DevicePool,
    num_blocks: int,
    fingerprint: bytes,
    ahead: HostAhead | None = None,
    group: RankGroups | None = None,
    share: Fraction = ALL,
    states: StatePool | WindowPool | None = None,
) -> OpenTiers:
    """Open the tiers of `config` below `pool`. The cache has its first `num_blocks` blocks.

    `ahead` is the host tier if a thread is already opening it. Each rank of a `group` has its
    `share` of every tier. All ranks get the same number of slots: the minimum over the ranks.
    """
    state_blocks = 0 if states is None else states.slot_blocks
    host = _open_host(config, pool, ahead, share, state_blocks)
    disk = _open_disk(config, pool, host, fingerprint, 0 if group is None else group.rank, share)
    host_blocks = 0 if host is None else host.num_blocks
    disk_blocks = 0 if disk is None else disk.num_blocks
    if group is not None:
        host_blocks, disk_blocks = group.least(host_blocks), group.least(disk_blocks)
        if disk is not None and not disk_blocks:
            _log.warning(
                "no disk tier: another rank has none; what lies in %s stays", disk.directory
            )
    if host is None and disk is None:
        return OpenTiers(LowerTiers(block_bytes=pool.block_bytes), None, None)
    layout = None if states is None else states.layout
    ratio = cache_ratio(config.cache.state_cache_ratio, layout, pool.layout.token_bytes)
    in_host, on_disk = (below(blocks, state_blocks, ratio) for blocks in (host_blocks, disk_blocks))
    tiers = Tiers(
        in_host.num_blocks,
        on_disk.num_blocks,
        ahead=blocks_ahead(num_blocks, config.cache.block_size),
        host_states=in_host.num_states,
        disk_states=on_disk.num_states,
        state_blocks=state_blocks or 1,
    )
    first = {Tier.HOST: tiers.host_blocks, Tier.DISK: tiers.disk_blocks}
    moved = None if states is None else (states, StateSlots(state_blocks, first))
    mover = tier_mover.TierMover(pool, host, disk, states=moved)
    return OpenTiers(LowerTiers(tiers, mover, disk, pool.block_bytes), host, disk)


def _open_host(
    config: EngineConfig,
    pool: DevicePool,
    ahead: HostAhead | None,
    share: Fraction,
    state_blocks: int,
) -> HostPool | None:
    began = time.perf_counter()
    try:
        host = (
            ahead.result() if ahead is not None else _make_host(config, pool, share, state_blocks)
        )
    except PoolDoesNotFit as error:
        _log.warning("no host tier: %s", error)
        return None
    if host is None:
        return None
    _log.info(
        "host tier: %d blocks, %.2f GiB, made ready in %.1f s and waited for %.1f s",
        host.num_blocks,
        host.nbytes / GIB,
        host.seconds,
        time.perf_counter() - began,
    )
    return host


def _make_host(
    config: EngineConfig, pool: DevicePool, share: Fraction, state_blocks: int
) -> HostPool | None:
    device = pool.tensor.device
    num_blocks = host_blocks(
        config,
        pool.block_bytes,
        on_cuda=device.type == "cuda",
        free=host_bytes(config.process.host_memory_bytes),
        share=share,
        state_blocks=state_blocks,
    )
    return HostPool(num_blocks, pool.block_bytes, device) if num_blocks else None


def _open_disk(
    config: EngineConfig,
    pool: DevicePool,
    host: HostPool | None,
    fingerprint: bytes,
    rank: int,
    share: Fraction,
) -> DiskTier | None:
    if config.cache.disk_cache_dir is None or not config.cache.disk_cache_gib:
        return None
    directory = Path(config.cache.disk_cache_dir)
    if not rank:
        _remove_ranks(directory, config.ranks.num_ranks)
    settings = DiskConfig(
        directory=directory / f"{RANK_PREFIX}{rank}" if rank else directory,
        max_bytes=int(int(config.cache.disk_cache_gib * GIB) * share),
        block_bytes=pool.block_bytes,
        fingerprint=fingerprint,
        encrypt=config.cache.disk_encryption,
    )
    try:
        disk = DiskTier(settings, host, pool.tensor.device)
    except (DiskUnavailable, PoolDoesNotFit, OSError) as error:
        _log.warning("no disk tier: %s", error)
        return None
    less = settings.num_blocks - disk.num_blocks
    why = f", {less} fewer than disk_cache_gib allows: the disk is too small" if less > 0 else ""
    _log.info("disk tier: %d blocks in %s%s", disk.num_blocks, settings.directory, why)
    return disk


def _remove_ranks(directory: Path, num_ranks: int) -> None:
    for path in directory.glob(f"{RANK_PREFIX}*"):
        number = path.name.removeprefix(RANK_PREFIX)
        if number.isdecimal() and int(number) >= num_ranks:
            shutil.rmtree(path, ignore_errors=True)
