"""The tiers below the device use a host pool that was allocated ahead, or a new one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.models.errors import BadConfig
from engine.startup.memory.lower_tiers import HostAhead, OpenTiers, host_ahead, open_tiers
from engine.startup.memory.pool_size import HOST_SHARE, OPENING_BYTES
from engine.tier_interfaces import NoTiers
from storage.errors import PoolDoesNotFit
from storage.free_memory import host_free_bytes
from storage.pools.device_pool import DevicePool
from storage.pools.host_pool import HostPool
from tests.doubles.disk.open_files import open_files
from tests.storage.scene import BLOCK_BYTES, CPU, FINGERPRINT, LAYOUT

NUM_BLOCKS = 4


def opened(ahead: HostAhead | None = None, **fields: Any) -> OpenTiers:
    config = EngineConfig.of(model_dir="", socket="", **fields)
    pool = DevicePool(LAYOUT, NUM_BLOCKS, CPU)
    return open_tiers(config, pool, NUM_BLOCKS, FINGERPRINT, ahead)


def made(make: Callable[[], HostPool | None]) -> HostAhead:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make)


def small_pool() -> HostPool:
    return HostPool(5, BLOCK_BYTES, CPU)


def too_much() -> HostPool:
    raise PoolDoesNotFit("more than there is")


def nothing() -> None:
    return None


def test_a_pool_made_ahead_is_the_host_tier_and_is_closed_with_the_tiers() -> None:
    tiers = opened(made(small_pool), host_cache_tokens=64)  # 64 tokens would give 4 blocks
    assert tiers.host is not None
    assert tiers.lower.tiers.host_blocks == tiers.host.num_blocks == 5
    assert tiers.host.descriptor >= 0
    tiers.close()
    with pytest.raises(PoolDoesNotFit, match="given back"):
        _ = tiers.host.descriptor
    tiers.host.close()  # `host_ahead` closes it too


def test_without_one_it_is_made_now() -> None:
    tiers = opened(host_cache_tokens=64)
    assert tiers.lower.tiers.host_blocks == 64 // LAYOUT.block_size
    tiers.close()


def test_a_pool_ahead_that_does_not_fit_costs_the_host_tier_alone(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    disk = {"disk_cache_dir": str(tmp_path), "disk_cache_gib": 0.01}
    tiers = opened(made(too_much), **disk)
    assert tiers.host is None
    assert tiers.lower.tiers.host_blocks == 0
    assert tiers.lower.tiers.disk_blocks > 0
    assert "no host tier: more than there is" in caplog.text
    tiers.close()


@pytest.mark.parametrize("fields", [{"host_cache_tokens": 0}, {}])
def test_where_there_is_to_be_none_nothing_is_said(
    caplog: pytest.LogCaptureFixture, fields: dict[str, Any]
) -> None:
    tiers = opened(made(nothing), **fields)
    assert tiers.host is None
    assert isinstance(tiers.lower.mover, NoTiers)
    assert caplog.text == ""


CUDA = torch.device("cuda", 0)
DEADLINE_S = 30.0


@dataclass
class HeldPools:
    """A factory that returns pools of CPU memory once a test releases it, and records the requests.

    If `fails` is set, the factory raises that error instead.
    """

    fails: Exception | None = None
    asked: list[tuple[int, int, torch.device, int]] = field(default_factory=list)
    made: list[HostPool] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(
        self, num_blocks: int, block_bytes: int, device: torch.device, available: int
    ) -> HostPool:
        self.asked.append((num_blocks, block_bytes, device, available))
        self.started.set()
        assert self.go_on.wait(DEADLINE_S)
        if self.fails is not None:
            raise self.fails
        self.made.append(HostPool(3, BLOCK_BYTES, CPU))
        return self.made[-1]


def at_once(fails: Exception | None = None) -> HeldPools:
    pools = HeldPools(fails)
    pools.go_on.set()
    return pools


def settings(**fields: Any) -> EngineConfig:
    return EngineConfig.of(model_dir="", socket="", **fields)


def is_open(pool: HostPool) -> bool:
    try:
        return pool.descriptor >= 0
    except PoolDoesNotFit:
        return False


def test_memory_is_asked_for_before_the_model_is_opened_and_given_back_at_the_end() -> None:
    pools = HeldPools()
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools) as ahead:
        assert ahead is not None
        assert pools.started.wait(DEADLINE_S)
        assert pools.made == [], "the model is opened while memory is still being made"
        pools.go_on.set()
        pool = ahead.result()
        assert pool is not None
        assert [pool] == pools.made
        assert is_open(pool)
    assert not is_open(pool)


def test_memory_is_given_back_when_the_model_cannot_be_opened() -> None:
    pools, before = HeldPools(), open_files()

    def start() -> None:
        with host_ahead(settings(), BLOCK_BYTES, CUDA, pools):
            assert pools.started.wait(DEADLINE_S)
            pools.go_on.set()
            raise BadConfig("no such model")

    with pytest.raises(BadConfig, match="no such model"):
        start()
    [pool] = pools.made
    assert not is_open(pool)
    assert open_files() == before


def test_memory_that_does_not_fit_is_an_error_for_whoever_takes_it() -> None:
    pools = at_once(PoolDoesNotFit("too much"))
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools) as ahead:
        assert ahead is not None
        with pytest.raises(PoolDoesNotFit, match="too much"):
            ahead.result()
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools):
        pass  # nothing takes the pool, as if the model could not be opened
    assert len(pools.asked) == 2


def test_an_error_that_nobody_expects_is_not_swallowed() -> None:
    with host_ahead(settings(), BLOCK_BYTES, CUDA, at_once(RuntimeError("threads"))) as ahead:
        assert ahead is not None
        with pytest.raises(RuntimeError, match="threads"):
            ahead.result()


def test_on_a_cpu_nothing_is_asked_for_ahead() -> None:
    pools = at_once()
    with host_ahead(settings(host_cache_gib=0.25), BLOCK_BYTES, CPU, pools) as ahead:
        assert ahead is None
    assert pools.asked == []


def test_without_a_host_tier_there_is_nothing_to_take() -> None:
    pools = at_once()
    with host_ahead(settings(host_cache_gib=0.0), BLOCK_BYTES, CUDA, pools) as ahead:
        assert ahead is not None
        assert ahead.result() is None
    assert pools.asked == []


def test_what_opening_the_model_takes_is_left() -> None:
    pools, free = at_once(), host_free_bytes()
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools):
        pass
    [(num_blocks, block_bytes, device, available)] = pools.asked
    assert (block_bytes, device) == (BLOCK_BYTES, CUDA)
    assert available == pytest.approx(max(free - OPENING_BYTES, 0), rel=0.25)
    assert num_blocks == pytest.approx(HOST_SHARE * available / BLOCK_BYTES, abs=1)


def test_so_are_weights_that_stay_in_host_memory() -> None:
    half = host_free_bytes() // 2
    pools = at_once()
    for gib in (0.0, half / 2**30):
        with host_ahead(settings(cpu_offload_gb=gib), BLOCK_BYTES, CUDA, pools):
            pass
    (*_, plain), (num_blocks, *_, beside) = pools.asked
    assert plain - beside == pytest.approx(half, rel=0.25)
    assert num_blocks == pytest.approx(HOST_SHARE * beside / BLOCK_BYTES, abs=1)


def test_a_size_that_was_asked_for_is_the_size() -> None:
    pools = at_once()
    with host_ahead(settings(host_cache_gib=1.5), BLOCK_BYTES, CUDA, pools):
        pass
    assert pools.asked[0][0] == 3 * 2**29 // BLOCK_BYTES


def test_a_size_that_leaves_no_room_for_opening_the_model_does_not_fit() -> None:
    """Refuse a host tier that leaves no memory for opening the model, before allocating it."""
    gib = (host_free_bytes() + OPENING_BYTES) / 2**30

    def unpinned(
        num_blocks: int, block_bytes: int, device: torch.device, available: int
    ) -> HostPool:
        return HostPool(num_blocks, block_bytes, CPU, available)

    with host_ahead(settings(host_cache_gib=gib), BLOCK_BYTES, CUDA, unpinned) as ahead:
        assert ahead is not None
        with pytest.raises(PoolDoesNotFit, match="are free"):
            ahead.result()
    with host_ahead(settings(host_cache_gib=0.001), BLOCK_BYTES, CUDA, unpinned) as ahead:
        assert ahead is not None
        assert ahead.result() is not None, "the control"
