"""A device pool allocates the counted bytes. Blocks are contiguous, and layers are views."""

from __future__ import annotations

import pytest
import torch

from storage.errors import PoolDoesNotFit
from storage.layouts.kv_layout import KvGroup, KvLayout
from storage.pools.device_pool import DevicePool
from tests.doubles.layouts import alike_layers

CPU = torch.device("cpu")
LLAMA_8B = alike_layers(32, 8, head_dim=128, dtype="bfloat16", block_size=16)
SMALL = alike_layers(3, 2, head_dim=32, dtype="float32", block_size=16)


def test_a_block_of_an_8b_is_two_mebibytes() -> None:
    assert LLAMA_8B.block_bytes == 2 * 2**20


def test_the_bytes_counted_are_the_bytes_allocated() -> None:
    pool = DevicePool(SMALL, 5, CPU)
    assert pool.num_blocks == 5
    assert pool.tensor.shape == (5, 3 * 2 * 2 * 16 * 32)
    assert pool.tensor.nbytes == 5 * pool.block_bytes == 5 * SMALL.block_bytes


def test_a_block_is_one_contiguous_run() -> None:
    pool = DevicePool(SMALL, 5, CPU)
    assert pool.tensor.is_contiguous()
    assert pool.tensor[3].is_contiguous()
    assert pool.tensor[3].nbytes == pool.block_bytes


def test_a_layer_is_a_view_of_the_pool() -> None:
    pool = DevicePool(SMALL, 5, CPU)
    layer = pool.layers[1]
    assert layer.shape == (5, 2, 2, 16, 32)
    layer[4, 1, 0, 15, 31] = 7.0
    assert pool.tensor.view(5, 3, 2, 2, 16, 32)[4, 1, 1, 0, 15, 31] == 7.0
    assert pool.tensor.count_nonzero() == 1


def test_a_layer_without_values_is_a_view_of_keys_alone() -> None:
    groups = KvGroup((0, 2), 1, 48, "float32", has_values=False), KvGroup((1,), 2, 32, "float32")
    pool = DevicePool(KvLayout(groups, 16), 5, CPU)
    assert [layer.shape[1:] for layer in pool.layers] == [
        (1, 1, 16, 48),
        (2, 2, 16, 32),
        (1, 1, 16, 48),
    ]
    pool.layers[2][4] = 7.0
    assert pool.tensor.count_nonzero() == 16 * 48
    assert pool.tensor[4, -16 * 48 :].eq(7.0).all()


@pytest.mark.parametrize("blocks", [1, 5])
def test_alike_layers_lie_as_one_tensor_of_all_would_have_them(blocks: int) -> None:
    """Place equal layers as in one tensor of all layers.

    Kernels are compiled for these addresses and strides, and captured graphs keep them.
    """
    pool = DevicePool(SMALL, blocks, CPU)
    whole = torch.empty((blocks, 3, 2, 2, 16, 32))
    first = pool.tensor.data_ptr()
    for layer in range(3):
        expected, view = whole[:, layer], pool.layers[layer]
        assert (view.shape, view.stride()) == (expected.shape, expected.stride())
        assert view.data_ptr() - first == expected.data_ptr() - whole.data_ptr()
        assert view.dtype == expected.dtype


def test_a_fresh_pool_is_finite() -> None:
    assert not DevicePool(SMALL, 2, CPU).tensor.any()


@pytest.mark.parametrize("blocks", [0, -3])
def test_refuses_a_pool_without_a_block(blocks: int) -> None:
    with pytest.raises(PoolDoesNotFit, match=str(blocks)):
        DevicePool(SMALL, blocks, CPU)
    assert DevicePool(SMALL, 1, CPU).num_blocks == 1


@pytest.mark.gpu
def test_says_so_when_the_device_has_not_the_memory() -> None:
    free, total = torch.cuda.mem_get_info()
    too_many = total // LLAMA_8B.block_bytes + 1
    with pytest.raises(PoolDoesNotFit, match="do not fit on cuda"):
        DevicePool(LLAMA_8B, too_many, torch.device("cuda"))
    fitting = free // 2 // LLAMA_8B.block_bytes
    assert DevicePool(LLAMA_8B, fitting, torch.device("cuda")).tensor.is_cuda
