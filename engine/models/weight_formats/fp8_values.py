"""The making of fp8 values and scales: at random, from a model checkpoint, or by quantising."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

USUAL = 100.0  # standard deviation of dummy values in e4m3, whose largest number is 448


def fill(values: Tensor, scales: Tensor, generator: torch.Generator) -> None:
    """Fill values (..., K) and scales at random, so that activations keep their magnitude."""
    import torch

    drawn = torch.empty(values.shape, dtype=torch.bfloat16, device=values.device)
    values.copy_(drawn.normal_(0.0, USUAL, generator=generator).clamp_(-448, 448))
    scales.uniform_(0.5, 1.5, generator=generator).mul_(values.shape[-1] ** -0.5 / USUAL)


def as_column(view: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that reshapes a scale, per tensor or 1-D, to the shape of `view`."""

    def convert(value: Tensor) -> Tensor:
        if value.numel() == 1:
            return value.reshape(1, 1).expand(view.shape)
        return value[:, None] if value.dim() == 1 else value

    return convert


def quantise_into(scales: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that quantises a tensor to e4m3, and fills `scales` (rows, 1)."""

    def convert(weight: Tensor) -> Tensor:
        from kernels.linear.fp8_matrix import scaled_to_e4m3

        values, found = scaled_to_e4m3(weight)
        scales.copy_(found)
        return values

    return convert
