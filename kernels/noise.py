"""Exponential noise by hashing a row's key with a token id, in plain PyTorch.

Subtracted from log weights, the logs of exponential variables make the argmax a fair draw:
nothing has to be normalised, and a token that is ruled out cannot win. The noise is a hash, not
a generator's stream: there is no state to keep in step.

Knows: integers and their mixing. Does not know: seeds, or what is drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_exponential(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Logs of exponential variables: subtracted from log weights, their argmax is a fair draw.

    `keys` (R, 2) int32, `token_ids` (V,) or (R, V) int32; returns (R, V) float32, finite.
    """
    bits = _mixed(keys, token_ids)
    uniform = bits.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31)
    # log1p keeps the small variables, which decide, exact; the bound keeps the largest finite.
    return uniform.clamp_(max=1.0 - 2.0**-24).neg_().log1p_().neg_().log_()


def _mixed(keys: Tensor, token_ids: Tensor) -> Tensor:
    """32 well mixed bits for every pair of key and token, (R, V) int32; products wrap around."""
    first, second = keys[:, :1], keys[:, 1:]
    x = torch.bitwise_xor(first, token_ids)
    x ^= _shifted(x, 16)
    x *= 0x7FEB352D
    x ^= second
    x ^= _shifted(x, 15)
    x *= 0x846CA68B - (1 << 32)
    x ^= _shifted(x, 16)
    return x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """`x` as an unsigned number, shifted to the right."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)
