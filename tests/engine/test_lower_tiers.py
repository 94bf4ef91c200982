"""The tiers below the device, opened with a host tier that was made ahead, or made now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.copies import NoTiers
from engine.host_ahead import HostAhead
from engine.lower_tiers import OpenTiers, open_tiers
from storage.device_pool import DevicePool
from storage.errors import PoolDoesNotFit
from storage.host_pool import HostPool
from tests.storage.scene import BLOCK_BYTES, CPU, FINGERPRINT, SHAPE

NUM_BLOCKS = 4


def opened(ahead: HostAhead | None = None, **fields: Any) -> OpenTiers:
    config = EngineConfig(model_dir="", socket="", **fields)
    pool = DevicePool(SHAPE, NUM_BLOCKS, CPU)
    return open_tiers(config, pool, NUM_BLOCKS, FINGERPRINT, ahead)


def small_pool() -> HostPool:
    return HostPool(5, BLOCK_BYTES, CPU)


def too_much() -> HostPool:
    raise PoolDoesNotFit("more than there is")


def nothing() -> None:
    return None


def test_a_pool_made_ahead_is_the_host_tier_and_is_closed_with_the_tiers() -> None:
    ahead = HostAhead(small_pool)
    tiers = opened(ahead, host_cache_tokens=64)  # would be 4 blocks
    ahead.close()
    assert tiers.host is not None
    assert tiers.lower.tiers.host_blocks == tiers.host.num_blocks == 5
    assert tiers.host.memory.descriptor >= 0
    tiers.close()
    with pytest.raises(PoolDoesNotFit, match="given back"):
        _ = tiers.host.memory.descriptor


def test_without_one_it_is_made_now() -> None:
    tiers = opened(host_cache_tokens=64)
    assert tiers.lower.tiers.host_blocks == 64 // SHAPE.block_size
    tiers.close()


def test_a_pool_ahead_that_does_not_fit_costs_the_host_tier_alone(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    disk = {"disk_cache_dir": str(tmp_path), "disk_cache_gib": 0.01}
    tiers = opened(HostAhead(too_much), **disk)
    assert tiers.host is None
    assert tiers.lower.tiers.host_blocks == 0
    assert tiers.lower.tiers.disk_blocks > 0
    assert "no host tier: more than there is" in caplog.text
    tiers.close()


@pytest.mark.parametrize("fields", [{"host_cache_tokens": 0}, {}])
def test_where_there_is_to_be_none_nothing_is_said(
    caplog: pytest.LogCaptureFixture, fields: dict[str, Any]
) -> None:
    tiers = opened(HostAhead(nothing), **fields)
    assert tiers.host is None
    assert isinstance(tiers.lower.mover, NoTiers)
    assert caplog.text == ""
