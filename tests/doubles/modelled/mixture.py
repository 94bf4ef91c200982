"""The seconds of a step of Qwen3-30B-A3B on one H200, from a table.

One token needs 8 of 128 experts, and some thirty tokens together need nearly all. So a few rows
take long, several hundred rows hardly longer, and a prompt's tokens are cheap only in large steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.doubles.modelled.products import ProductModel, computed_rows

# Milliseconds of a step without attention. Decodes: the time between tokens in `ratoon bench
# --workload itl`; 512 and 8,192 rows: `python -m benchmarks.engine.step`; between these: the
# products of `python -m benchmarks.engine.experts` at 1,024 and 8,192 tokens (206 and 453 TFLOP/s),
# plus 3 us a token. At 8 and 16 rows: in proportion to the experts that the rows read.
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
STEP_MS = (3.0, 7.7, 10.7, 14.2, 15.8, 16.9, 19.0, 20.0, 25.0, 34.0, 43.0, 53.0, 73.0, 93.0)


@dataclass(frozen=True, slots=True)
class MixtureModel(ProductModel):
    """The seconds of a step. A launch without a graph replay took 41 to 57 ms in a server."""

    of_itself: float = 0.1e-3
    token: float = 0.0
    pair: float = 1.1e-9
    decode_key: float = 21.4e-9
    eager_launch: float = 47e-3

    def products(self, decodes: int, new: int) -> float:
        """Return the table's seconds for the bucket in which the step is replayed."""
        rows = computed_rows(decodes, new, is_together=self.read_once > 0)
        return 1e-3 * float(np.interp(rows, ROWS, STEP_MS))
