"""A host pool is one arena with a row for each block. A failed allocation leaves nothing open."""

from __future__ import annotations

import mmap
import os
import resource

import pytest
import torch

from storage.errors import PoolDoesNotFit
from storage.free_memory import host_free_bytes
from storage.pools.host_pool import HostPool
from tests.doubles.disk.open_files import open_files
from tests.storage.scene import CPU


def test_a_block_is_one_row_of_an_arena() -> None:
    pool = HostPool(5, 4096, CPU)
    assert pool.tensor.shape == (5, 4096)
    assert pool.tensor.dtype == torch.uint8
    assert pool.tensor.is_contiguous()
    assert pool.nbytes == 5 * 4096
    assert pool.seconds > 0
    assert not pool.is_pinned
    assert not pool.tensor.any()
    pool.close()


@pytest.mark.parametrize("blocks", [0, -1])
def test_refuses_a_pool_without_a_block(blocks: int) -> None:
    with pytest.raises(PoolDoesNotFit, match=str(blocks)):
        HostPool(blocks, 4096, CPU)


def test_refuses_more_than_there_is_before_it_takes_any() -> None:
    open_before = open_files()
    with pytest.raises(PoolDoesNotFit, match="GiB of memory are free"):
        HostPool(5, 4096, CPU, available=20479)
    with pytest.raises(PoolDoesNotFit):
        HostPool(host_free_bytes(), 4096, CPU)
    assert open_files() == open_before
    HostPool(5, 4096, CPU, available=20480).close()


def test_an_allocation_that_fails_is_typed_and_leaves_nothing_open() -> None:
    open_before = open_files()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # the limit applies to memory-backed files too
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(PoolDoesNotFit, match="too large"):
            HostPool(2, 1 << 20, CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    HostPool(2, 1 << 20, CPU).close()
    assert open_files() == open_before


@pytest.mark.parametrize("num_blocks", [1, 3, 255, 256, 257, 1300])
def test_every_page_is_there_from_the_start(num_blocks: int) -> None:
    """Touch every page at the start.

    Each thread touches 1 MiB, or 256 of these blocks.
    """
    pool = HostPool(num_blocks, 4096, CPU)
    assert os.stat(pool.descriptor).st_blocks * 512 == pool.nbytes
    pool.close()


def test_another_mapping_sees_the_same_bytes() -> None:
    pool = HostPool(3, 4096, CPU)
    other = mmap.mmap(pool.descriptor, pool.nbytes, prot=mmap.PROT_READ)
    pool.tensor[1, 7] = 99
    assert other[4096 + 7] == 99
    other.close()
    pool.close()


def test_closing_gives_the_memory_back_and_may_be_repeated() -> None:
    open_before = open_files()
    pool = HostPool(3, 4096, CPU)
    pool.close()
    pool.close()
    assert open_files() == open_before
    with pytest.raises(PoolDoesNotFit, match="given back"):
        _ = pool.descriptor


@pytest.mark.gpu
def test_the_pool_is_pinned_for_a_gpu() -> None:
    pool = HostPool(64, 1 << 20, torch.device("cuda"))
    assert pool.is_pinned
    assert pool.tensor.is_pinned()
    pool.close()
