"""Scales in a checkpoint that no weight could be multiplied by.

A file that was cut off, or never filled, may have all its tensors and shapes. Its scales give it
away: they are not finite, or nothing but zeros. Served, such a model would answer with noise.

Does not know: which format they are of, or their names, which whoever loads them adds.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from engine.models.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


def checked_scales(scales: Tensor) -> Tensor:
    """Those of a matrix; raises CheckpointError. Some may be 0: rows of zeros have such."""
    if not scales.is_floating_point():
        return scales  # of which whoever loads them says what dtype they are
    total = float(scales.float().abs().sum())
    if not isfinite(total):
        raise CheckpointError("a scale is not finite")
    if total == 0:
        raise CheckpointError("all scales are 0, and so all weights would be")
    return scales


def checked_input_scale(scale: Tensor) -> Tensor:
    """What inputs are divided by, (1,) float32; raises CheckpointError."""
    if scale.numel() != 1:
        raise CheckpointError(f"it is {tuple(scale.shape)}: served is one number")
    number = float(scale)
    if not (isfinite(number) and number > 0):
        raise CheckpointError(f"it is {number:g}: served is a finite number above 0")
    return scale.float().reshape(1)
