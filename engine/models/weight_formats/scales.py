"""Checks for unusable scales in a checkpoint.

A file that was cut off, or never filled, may have all its tensors and shapes. Its scales give it
away: they are not finite, or nothing but zeros. Served, such a model would answer with noise.

Does not know: which format they are of.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from engine.models.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


class ScaleChecks:
    """Checks of a file's scales. Their sums stay on the device until all are read: one wait."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, name: str, scales: Tensor) -> None:
        """Add a matrix's scales, to be checked later; return without waiting."""
        if scales.is_floating_point():  # the loader of other scales checks their dtype
            self._sums[name] = scales.float().abs().sum()

    def check(self) -> None:
        """Check all scales since the last call: CheckpointError for the first invalid scales.

        Some of a matrix may be 0: rows of zeros have such.
        """
        import torch

        noted, self._sums = self._sums, {}
        totals = torch.stack(list(noted.values())).tolist() if noted else []
        for name, total in zip(noted, totals, strict=True):
            if not isfinite(total):
                raise CheckpointError(f"{name}: a scale is not finite")
            if total == 0:
                raise CheckpointError(f"{name}: all scales are 0, and so all weights would be")


def checked_input_scale(scale: Tensor) -> Tensor:
    """Return the divisor of inputs, (1,) float32; raises CheckpointError, without the name."""
    if scale.numel() != 1:
        raise CheckpointError(f"it is {tuple(scale.shape)}: served is one number")
    number = float(scale)
    if not (isfinite(number) and number > 0):
        raise CheckpointError(f"it is {number:g}: served is a finite number above 0")
    return scale.float().reshape(1)
