"""The decay of a recurrent state by a token: exp(-rate * step), step = softplus(x).

The logarithms of decays are summed over tokens. LEAST_DECAY, or any lower logarithm, means a decay
of 0 in float32. In a sum, a much lower logarithm would make the later logarithms inexact. A
logarithm below LEAST_DECAY is therefore replaced by LEAST_DECAY.
"""

from __future__ import annotations

import triton
import triton.language as tl

LEAST_DECAY = -128.0
_LEAST_DECAY = tl.constexpr(LEAST_DECAY)


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """Compute max(x, 0) + log(1 + y) with y = exp(-|x|), float32.

    If y is small, the logarithm is computed by its series, because 1 + y would be rounded to 1.
    """
    y = tl.exp(-tl.abs(x))
    series = y * (1.0 - y * (0.5 - y * (0.33333334 - 0.25 * y)))
    return tl.maximum(x, 0.0) + tl.where(y < 0.0078125, series, tl.log(1.0 + y))


@triton.jit
def log_decay(rate: tl.tensor, step: tl.tensor) -> tl.tensor:
    """Return the logarithm of a token's decay, float32, at least LEAST_DECAY. NaN stays NaN."""
    log = -rate * step
    return tl.where(log < _LEAST_DECAY, _LEAST_DECAY, log)


@triton.jit
def time_step(x: tl.tensor, least: tl.tensor, most: tl.tensor) -> tl.tensor:
    """Return softplus(x), limited to `least`..`most`, in float32. NaN stays NaN."""
    step = softplus(x)
    step = tl.where(step < least, least, step)
    return tl.where(step > most, most, step)
