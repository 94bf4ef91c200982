"""A scene with tiers in which owners have quotas; a restarted cache gets them again."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.shares import Quota
from tests.prefix_cache.support.tiers_driver import TiersDriver
from tests.prefix_cache.support.tiers_scene import TierScene


class QuotaScene(TierScene):
    """A scene with `quotas` by owner, set when the cache is made."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 1,
        *,
        quotas: Mapping[str, Quota],
        host: int = 0,
        disk: int = 0,
        max_disk_writes: int = 64,
        ahead: int = 0,
    ) -> None:
        self.quotas = dict(quotas)
        super().__init__(
            num_blocks,
            block_size,
            host=host,
            disk=disk,
            max_disk_writes=max_disk_writes,
            ahead=ahead,
        )

    def _new_cache(self) -> PrefixCache:
        cache = super()._new_cache()
        for owner, quota in self.quotas.items():
            cache.quotas.set(owner, quota)
        return cache

    def set_quota(self, owner: str, quota: Quota) -> None:
        self.quotas[owner] = quota
        self.cache.quotas.set(owner, quota)


def any_quota(random: Random) -> Quota:
    """Draw a random quota; the default and the smallest are possible."""
    shares = sorted(random.choice((0.0, 0.1, 0.3, 0.5, 1.0)) for _ in range(2))
    return Quota(shares[0], shares[1], random.choice((0.25, 1.0, 1.0, 3.0)))


class QuotaDriver(TiersDriver):
    """Random operations while quotas change."""

    def __init__(
        self, seed: int, scene: QuotaScene, owners: tuple[str, ...], *, check_every: int
    ) -> None:
        super().__init__(seed, scene, max_tokens=12, check_every=check_every)
        self._scene = scene
        self._owners = owners
        self._acts[self.requota] = 1

    def requota(self) -> None:
        self._scene.set_quota(self.random.choice(self._owners), any_quota(self.random))
