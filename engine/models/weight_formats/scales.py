"""The checks for damaged scales in a model checkpoint.

A damaged file may have the right tensors and shapes, but scales that are not finite, or all zero.
The model would then answer with noise.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from engine.models.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


class ScaleChecks:
    """The checks of a file's scales.

    Sums stay on the device until `check`, so that the host waits only once.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, name: str, scales: Tensor) -> None:
        """Add the scales of a matrix, without waiting. `check` will check them."""
        if scales.is_floating_point():  # for other scales, loading checks the dtype
            self._sums[name] = scales.float().abs().sum()

    def check(self) -> None:
        """Check the scales added since the last call.

        Raises CheckpointError for invalid scales. Some scales of a matrix may be 0, because a row
        of zeros has the scale 0.
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
    """Return an input scale as (1,) float32. Raises CheckpointError, without the tensor's name."""
    if scale.numel() != 1:
        raise CheckpointError(f"it is {tuple(scale.shape)}: served is one number")
    number = float(scale)
    if not (isfinite(number) and number > 0):
        raise CheckpointError(f"it is {number:g}: served is a finite number above 0")
    return scale.float().reshape(1)
