"""Host memory that is made beside the model: when it is asked for, and whose it is."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.host_ahead import HostAhead, host_ahead
from engine.model.errors import BadConfig
from engine.pool_size import HOST_SHARE, OPENING_BYTES
from storage.errors import PoolDoesNotFit
from storage.free_memory import host_free_bytes
from storage.host_pool import HostPool
from tests.doubles.open_files import open_files

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
BLOCK_BYTES = 4096
DEADLINE_S = 30.0


@dataclass
class HeldPools:
    """Makes pools of CPU memory, whatever was asked for, when it is let go; notes what was asked.

    The `fails` of it is raised instead of making one.
    """

    fails: Exception | None = None
    asked: list[tuple[int, int, torch.device, int]] = field(default_factory=list)
    made: list[HostPool] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(
        self, num_blocks: int, block_bytes: int, device: torch.device, available: int
    ) -> HostPool:
        self.asked.append((num_blocks, block_bytes, device, available))
        self.begun.set()
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
    return EngineConfig(model_dir="", socket="", **fields)


def is_open(pool: HostPool) -> bool:
    try:
        return pool.memory.descriptor >= 0
    except PoolDoesNotFit:
        return False


def test_memory_is_asked_for_before_the_model_is_opened_and_handed_over_after() -> None:
    pools = HeldPools()
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools) as ahead:
        assert ahead is not None
        assert pools.begun.wait(DEADLINE_S)
        assert pools.made == [], "the model is opened while memory is still being made"
        pools.go_on.set()
        pool = ahead.take()
        assert [pool] == pools.made
    assert pool is not None
    assert is_open(pool), "it belongs to whoever took it"
    pool.close()
    assert not is_open(pool)


def test_memory_is_given_back_when_the_model_cannot_be_opened() -> None:
    pools, before = HeldPools(), open_files()

    def start() -> None:
        with host_ahead(settings(), BLOCK_BYTES, CUDA, pools):
            assert pools.begun.wait(DEADLINE_S)
            pools.go_on.set()
            raise BadConfig("no such model")

    with pytest.raises(BadConfig, match="no such model"):
        start()
    [pool] = pools.made
    assert not is_open(pool)
    assert open_files() == before


def test_closing_may_be_repeated_and_leaves_what_was_taken() -> None:
    ahead = HostAhead(lambda: HostPool(2, BLOCK_BYTES, CPU))
    pool = ahead.take()
    ahead.close()
    ahead.close()
    assert pool is not None
    assert is_open(pool)
    pool.close()


def test_memory_that_does_not_fit_is_an_error_for_whoever_takes_it() -> None:
    pools = at_once(PoolDoesNotFit("too much"))
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools) as ahead:
        assert ahead is not None
        with pytest.raises(PoolDoesNotFit, match="too much"):
            ahead.take()
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools):
        pass  # and for nobody where the model cannot be opened
    assert len(pools.asked) == 2


def test_an_error_that_nobody_expects_is_not_swallowed() -> None:
    with host_ahead(settings(), BLOCK_BYTES, CUDA, at_once(RuntimeError("threads"))) as ahead:
        assert ahead is not None
        with pytest.raises(RuntimeError, match="threads"):
            ahead.take()


def test_on_a_cpu_nothing_is_asked_for_ahead() -> None:
    pools = at_once()
    with host_ahead(settings(host_cache_gib=0.25), BLOCK_BYTES, CPU, pools) as ahead:
        assert ahead is None
    assert pools.asked == []


def test_without_a_host_tier_there_is_nothing_to_take() -> None:
    pools = at_once()
    with host_ahead(settings(host_cache_gib=0.0), BLOCK_BYTES, CUDA, pools) as ahead:
        assert ahead is not None
        assert ahead.take() is None
    assert pools.asked == []


def test_what_opening_the_model_takes_is_left() -> None:
    pools, free = at_once(), host_free_bytes()
    with host_ahead(settings(), BLOCK_BYTES, CUDA, pools):
        pass
    [(num_blocks, block_bytes, device, available)] = pools.asked
    assert (block_bytes, device) == (BLOCK_BYTES, CUDA)
    assert available == pytest.approx(max(free - OPENING_BYTES, 0), rel=0.25)
    assert num_blocks == pytest.approx(HOST_SHARE * available / BLOCK_BYTES, abs=1)


def test_a_size_that_was_asked_for_is_the_size() -> None:
    pools = at_once()
    with host_ahead(settings(host_cache_gib=1.5), BLOCK_BYTES, CUDA, pools):
        pass
    assert pools.asked[0][0] == 3 * 2**29 // BLOCK_BYTES


def test_a_size_that_leaves_no_room_for_opening_the_model_does_not_fit() -> None:
    """Real memory, refused before any of it is taken."""
    gib = (host_free_bytes() + OPENING_BYTES) / 2**30

    def unpinned(
        num_blocks: int, block_bytes: int, device: torch.device, available: int
    ) -> HostPool:
        return HostPool(num_blocks, block_bytes, CPU, available)

    with host_ahead(settings(host_cache_gib=gib), BLOCK_BYTES, CUDA, unpinned) as ahead:
        assert ahead is not None
        with pytest.raises(PoolDoesNotFit, match="are free"):
            ahead.take()
    with host_ahead(settings(host_cache_gib=0.001), BLOCK_BYTES, CUDA, unpinned) as ahead:
        assert ahead is not None
        assert ahead.take() is not None, "the control"
