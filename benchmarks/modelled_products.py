"""Seconds of a step of an 8B on one H200, products by a table.

`StepModel` has a price a token. But a product reads its weight once for all of a step's tokens:
few beside decodes cost little, and this model says how little.

Knows: what fits measured steps. Does not know: queues, or who is in a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.modelled import StepModel
from engine.step_sizes import MOST_NEW, filled, places_for

# Microseconds of a layer's four products. From 64 rows on those of `python -m benchmarks.products`,
# 2 to 15 % up, so that steps and whole workloads take what they were measured to: for seconds on
# end the machine computes at its power limit. Below 64 rows from steps alone.
ROWS = (1, 32, 64, 112, 128, 256, 384, 512, 640, 768, 1024, 3072, 8192)
PRODUCTS_US = (108, 118, 128, 133, 141, 212, 250, 325, 420, 505, 740, 1940, 5110)
LAYERS = 32


@dataclass(frozen=True, slots=True)
class ProductModel(StepModel):
    """Seconds of a step; `token` is norms, rotation and gates of a row, decodes too."""

    of_itself: float = 0.6e-3  # logits, and kernels that are too short to read anything for long
    token: float = 1.3e-6
    pair: float = 1.05e-9
    decode_key: float = 28.5e-9

    def products(self, decodes: int, new: int) -> float:
        """By the table, of the room in which the step is replayed."""
        rows = _rows(decodes, new)
        return LAYERS * 1e-6 * float(np.interp(rows, ROWS, PRODUCTS_US)) + self.token * rows


def _rows(decodes: int, new: int) -> int:
    """Of the room that a step is replayed in; of the step itself where it is too large for one."""
    if not new or new > MOST_NEW:
        return decodes + new
    return places_for(decodes) + filled(decodes, new)
