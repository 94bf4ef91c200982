"""Seconds of a step of an 8B on one H200, products by a table.

`StepModel` has a price a token. But a product reads its weight once for all of a step's tokens:
few beside decodes cost little, and this model says how little. And a step is computed in the bucket
that it is replayed in.

Knows: what fits measured steps, which buckets there are. Does not know: queues, or whose rows
these are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.step import Step
from engine.step_sizes import MOST_NEW, SHARING_NEW_TOKENS, filled, places_for
from tests.doubles.modelled.device import StepModel, prompt_tokens

# Microseconds of a layer's four products: what is left of the steps of *multiturn*, eight times
# with several bounds, and of *agents*, once the rest of this model is taken away. For seconds on
# end the machine computes at its power limit, so these are up to 15 % above what the products take
# alone, cold. At 112, 128 and 256 rows, of which there were no steps, between the two.
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
    """Seconds of a step; `token` is norms, rotation and gates of a row, decodes too."""

    of_itself: float = 0.6e-3  # logits, and kernels that are too short to read anything for long
    token: float = 1.3e-6
    pair: float = 1.05e-9
    decode_key: float = 28.5e-9

    def seconds(self, step: Step) -> float:
        """How long the device takes. In some buckets decodes do not read together."""
        new = prompt_tokens(step)
        is_together = new <= SHARING_NEW_TOKENS[-1] or new > MOST_NEW
        model = self if is_together else replace(self, read_once=0.0)
        return StepModel.seconds(model, step)

    def products(self, decodes: int, new: int) -> float:
        """By the table, of the bucket in which the step is replayed."""
        rows = computed_rows(decodes, new, is_together=self.read_once > 0)
        return LAYERS * 1e-6 * float(np.interp(rows, ROWS, PRODUCTS_US)) + self.token * rows


def computed_rows(decodes: int, new: int, *, is_together: bool) -> int:
    """Rows of the bucket that a step is replayed in; of the step itself where it fits none."""
    if not new or new > MOST_NEW:
        return decodes + new
    together = (size for size in SHARING_NEW_TOKENS if is_together and size >= new)
    return places_for(decodes) + next(together, filled(decodes, new))
