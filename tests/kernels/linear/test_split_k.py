"""A split-K GEMM equals the undivided GEMM."""

from __future__ import annotations

import torch

from kernels.linear.split_k import layout, whole


def test_a_product_that_is_whole_stays_what_it_is() -> None:
    product = torch.ones(3, 4, dtype=torch.float16)
    assert whole(product, torch.float16) is product
    assert layout(product) == (1, 0, 4)


def test_parts_are_added_in_float32_and_rounded_once() -> None:
    parts = torch.tensor([[[2048.0, 1.0]], [[1.0, 0.5]], [[1.0, 0.25]]])
    got = whole(parts, torch.float16)
    assert got.dtype == torch.float16
    # In float16, 2048 + 1 is 2048; adding 1 twice changes nothing.
    assert got.tolist() == [[2050.0, 1.75]]
    assert layout(parts) == (3, 2, 2)


def test_strides_are_those_of_rows_that_lie_apart() -> None:
    assert layout(torch.ones(5, 8)[:, :3]) == (1, 0, 8)
    assert layout(torch.ones(2, 5, 8)[:, :, :3]) == (2, 40, 8)
