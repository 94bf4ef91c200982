"""The exponential noise, computed from hashes of a row's key and a token id, in plain PyTorch.

Subtract logs of exponential variables from the logits: the argmax is a sample of the logits'
softmax (the Gumbel-max trick). No probabilities need to be normalised, and a token with logit -inf
is never chosen. The noise is a hash and not the output of a random number generator, so there is no
state to keep. The hash is lowbias32 (Chris Wellons, "Prospecting for Hash Functions", 2018). The
key's second word is mixed in after the first half of the hash.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_exponential(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Compute the log of an exponential variable of mean 1 for each key and token id.

    `keys` are (R, 2) int32. `token_ids` are (V,) or (R, V) int32. Returns (R, V) float32. All
    numbers are finite.
    """
    bits = _mixed(keys, token_ids)
    uniform = bits.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31)
    # log1p is exact for small variables, which decide samples. The bound keeps large logs finite.
    return uniform.clamp_(max=1.0 - 2.0**-24).neg_().log1p_().neg_().log_()


def _mixed(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Hash each pair of key and token to 32 bits -> (R, V) int32. Products wrap around."""
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
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)
