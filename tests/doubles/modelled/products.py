"""The seconds of a step of an 8B model on one H200, with a table for GEMMs.

`StepModel` has a fixed time for each token. But a GEMM reads its weight once for all of a step's
tokens, so a few prompt tokens beside decodes cost little. This model therefore reads the time of
GEMMs from a table. A step takes the time of the bucket in which it is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.step import Step
from engine.step_sizes import MOST_NEW, SHARING_NEW_TOKENS, filled, places_for
from tests.doubles.modelled.device import StepModel, prompt_tokens

# Microseconds of a layer's four GEMMs. They are the measured steps of *multiturn* (eight runs with
# several bounds) and of *agents*, minus the other parts of this model. In long runs the GPU
# computes at its power limit, so these times are up to 15 % above those of the GEMMs alone on a
# cold GPU. No steps had 112, 128 or 256 rows: those numbers lie between the times of the
# GEMMs alone and 15 % more.
ROWS = (
    *(1, 8, 16, 24, 32, 40, 64, 112, 128, 192, 256, 320),
    *(384, 512, 640, 768, 1024, 1552, 2080, 2580, 3113, 8192),
)
PRODUCTS_US = (
    *(108, 113, 122, 126, 129, 133, 134, 146, 153, 195, 232, 266),
    *(306, 369, 448, 518, 636, 978, 1318, 1610, 1900, 4900),
)
LAYERS = 32


@dataclass(frozen=True, slots=True)
class ProductModel(StepModel):
    """The seconds of a step. `token` is the time of a row's norms, rotation and gates."""

    of_itself: float = 0.6e-3  # seconds of a step for logits and very short kernels
    token: float = 1.3e-6
    pair: float = 1.05e-9
    decode_key: float = 28.5e-9

    def seconds(self, step: Step) -> float:
        """Return the seconds that the device takes. In some buckets each row reads its own keys."""
        new = prompt_tokens(step)
        is_together = new <= SHARING_NEW_TOKENS[-1] or new > MOST_NEW
        model = self if is_together else replace(self, read_once=0.0)
        return StepModel.seconds(model, step)

    def products(self, decodes: int, new: int) -> float:
        """Return the table's seconds for the bucket in which the step is replayed."""
        rows = computed_rows(decodes, new, is_together=self.read_once > 0)
        return LAYERS * 1e-6 * float(np.interp(rows, ROWS, PRODUCTS_US)) + self.token * rows


def computed_rows(decodes: int, new: int, *, is_together: bool) -> int:
    """Return the rows of the graph bucket in which a step is replayed, or the step's own rows."""
    if not new or new > MOST_NEW:
        return decodes + new
    together = (size for size in SHARING_NEW_TOKENS if is_together and size >= new)
    return places_for(decodes) + next(together, filled(decodes, new))
