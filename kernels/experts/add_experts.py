"""The sum of a token's expert outputs: y[t] = sum_j products[j, t], in order, in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv

_COLUMNS = 1024


def reference(products: Tensor) -> Tensor:
    """Sum products (k, T, H) -> (T, H) of the same dtype. Plain PyTorch."""
    total = products[0].float()
    for product in products[1:]:
        total = total + product.float()
    return total.to(products.dtype)


@triton.jit
def _add_experts_kernel(
    products: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    C: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * C + tl.arange(0, C)
    inside = column < SIZE
    source = products + row * SIZE + column
    total = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(1, TOP_K):
        total += tl.load(source + k * stride, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, total.to(out.dtype.element_ty), mask=inside)


def launch(products: Tensor) -> Tensor:
    """Compute `reference` on the device. Products must be contiguous."""
    top_k, tokens, size = products.shape
    out = torch.empty((tokens, size), dtype=products.dtype, device=products.device)
    if tokens:
        _add_experts_kernel[(tokens, cdiv(size, _COLUMNS))](
            products,
            out,
            products.stride(0),
            TOP_K=top_k,
            SIZE=size,
            C=_COLUMNS,
            **dependent_launch(products.device),
        )
    return out
