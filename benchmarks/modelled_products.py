"""Seconds of a step of an 8B on one H200, products by a table of measured ones.

`StepModel` has a price a token. But a product reads its weight once for all of a step's tokens:
few beside decodes cost little, and this model says how little.

Knows: what was measured. Does not know: queues, or who is in a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.modelled import StepModel
from engine.step import Step
from engine.step_sizes import MOST_NEW, filled, places_for

# Microseconds of a layer's four products (`python -m benchmarks.products`); from 256 rows on what
# they take for seconds on end, at the power limit.
ROWS = (1, 32, 64, 112, 128, 256, 384, 512, 640, 768, 1024, 3072, 8192)
PRODUCTS_US = (108, 118, 128, 133, 141, 212, 250, 325, 420, 505, 740, 1940, 5110)
LAYERS = 32
OF_ITSELF_S = 0.6e-3  # logits, and kernels that are too short to read anything for long
ROW_S = 1.3e-6  # norms, rotation, gates
PAIR_S = 1.05e-9  # of a prompt's token and a key before it
DECODE_KEY_S = 28.5e-9


@dataclass(frozen=True, slots=True)
class ProductModel(StepModel):
    """Seconds of a step. `read_once`: the share of decodes' keys that are read with others'."""

    read_once: float = 0.0

    def seconds(self, step: Step) -> float:
        """How long the device takes."""
        chunks = [row for row in step.rows if row.num_new > 1]
        keys = sum(row.end for row in step.rows if row.num_new == 1)
        pairs = sum(row.num_new * (row.start + row.num_new / 2) for row in chunks)
        decodes = len(step.rows) - len(chunks)
        rows = _rows(decodes, sum(row.num_new for row in chunks))
        return (
            LAYERS * 1e-6 * float(np.interp(rows, ROWS, PRODUCTS_US))
            + OF_ITSELF_S
            + ROW_S * rows
            + PAIR_S * pairs
            + DECODE_KEY_S * keys * (1 - self.read_once)
        )


def _rows(decodes: int, new: int) -> int:
    """Of the room that a step is replayed in; of the step itself where it is too large for one."""
    if not new or new > MOST_NEW:
        return decodes + new
    return places_for(decodes) + filled(decodes, new)
