"""Opens what lies below the device: host memory, a disk, and the mover between them.

A tier that cannot be opened does not keep the engine from serving: it is left out, which is logged
and shown in the stats.

Knows: sizes, and which tiers may be left out. Does not know: how a tier works (`storage`), or which
blocks go where (`prefix_cache`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from engine.copies import Disk, NoTiers, TierMover
from engine.host_ahead import HostAhead
from engine.pool_size import blocks_ahead, host_blocks
from prefix_cache.shelf import Tiers
from storage import tier_mover
from storage.device_pool import DevicePool
from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.errors import DiskUnavailable, PoolDoesNotFit
from storage.free_memory import host_free_bytes
from storage.host_pool import HostPool

GIB = 1 << 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LowerTiers:
    """The tiers below the device, and the mover between them; by default there are none."""

    tiers: Tiers = field(default_factory=Tiers)
    mover: TierMover = field(default_factory=NoTiers)
    disk: Disk | None = None
    block_bytes: int = 1


@dataclass(frozen=True, slots=True)
class OpenTiers:
    """Tiers that were opened, to be closed when the engine ends."""

    lower: LowerTiers
    host: HostPool | None
    disk: DiskTier | None

    def close(self) -> None:
        """End copies, let what was written reach the disk, and give the memory back."""
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
) -> OpenTiers:
    """Open the tiers of `config` below `pool`, whose first `num_blocks` blocks are the cache's.

    `ahead` is the host tier where it is on its way already; else it is made now.
    """
    host = _open_host(config, pool, ahead)
    disk = _open_disk(config, pool, host, fingerprint)
    if host is None and disk is None:
        return OpenTiers(LowerTiers(block_bytes=pool.block_bytes), None, None)
    tiers = Tiers(
        host_blocks=0 if host is None else host.num_blocks,
        disk_blocks=0 if disk is None else disk.num_blocks,
        ahead=blocks_ahead(num_blocks, config.block_size),
    )
    lower = LowerTiers(tiers, tier_mover.TierMover(pool, host, disk), disk, pool.block_bytes)
    return OpenTiers(lower, host, disk)


def _open_host(config: EngineConfig, pool: DevicePool, ahead: HostAhead | None) -> HostPool | None:
    began = time.perf_counter()
    try:
        host = _make_host(config, pool) if ahead is None else ahead.take()
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


def _make_host(config: EngineConfig, pool: DevicePool) -> HostPool | None:
    device = pool.tensor.device
    num_blocks = host_blocks(
        config, pool.block_bytes, on_cuda=device.type == "cuda", free=host_free_bytes()
    )
    return HostPool(num_blocks, pool.block_bytes, device) if num_blocks else None


def _open_disk(
    config: EngineConfig, pool: DevicePool, host: HostPool | None, fingerprint: bytes
) -> DiskTier | None:
    if config.disk_cache_dir is None or not config.disk_cache_gib:
        return None
    settings = DiskConfig(
        directory=Path(config.disk_cache_dir),
        max_bytes=int(config.disk_cache_gib * GIB),
        block_bytes=pool.block_bytes,
        fingerprint=fingerprint,
        encrypt=config.disk_encryption,
    )
    try:
        disk = DiskTier(settings, host, pool.tensor.device)
    except (DiskUnavailable, PoolDoesNotFit, OSError) as error:
        _log.warning("no disk tier: %s", error)
        return None
    _log.info("disk tier: %d blocks in %s", disk.num_blocks, config.disk_cache_dir)
    return disk
