"""Applies top-k, top-p and min-p: sets the logits of tokens that must not be drawn to -inf.

    1. top-k keeps the k likeliest tokens,
    2. top-p keeps the fewest likeliest of those whose probabilities reach p of their sum,
    3. min-p keeps those with at least p times the likeliest token's probability.

Of tokens with equal scores the lower id counts as likelier. Probabilities are compared as whole
numbers: a token weighs its probability over the likeliest token's, in units of 2^-30. The sum of
whole numbers does not depend on their order. So the reference, which sorts, and the device, which
searches for the score at which the sum is reached (`radix_select`), keep the very same set, ties
included.

Knows: scores and weights. Does not know: noise or seeds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import radix_select

UNIT = float(2**30)
RULED_OUT = float("-inf")


def reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    log_min_p: Tensor,
    *,
    limits_k: bool = True,
) -> None:
    """Set what is left out of `logits` (K, V) float32 to -inf. Plain PyTorch, by sorting.

    `temperature` (K,) float32 above 0; `top_k` (K,) int64; `top_p` (K,) float32, above 1 to
    keep all; `log_min_p` (K,) float32. `limits_k` False says that every top_k is V or more.
    """
    scores, weights = _scores_and_weights(logits, temperature)
    values, ids = scores.sort(dim=-1, descending=True, stable=True)
    masses = weights.gather(1, ids).long()
    kept = torch.ones_like(masses, dtype=torch.bool)
    if limits_k:
        kept = torch.arange(logits.shape[1], device=logits.device) < top_k[:, None]
        masses = torch.where(kept, masses, 0)
    kept &= masses.cumsum(-1) - masses < _bound(masses, top_p)[:, None]
    kept &= values >= values[:, :1] + log_min_p[:, None]
    logits.masked_fill_(~torch.zeros_like(kept).scatter_(1, ids, kept), RULED_OUT)


def launch(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    log_min_p: Tensor,
    *,
    limits_k: bool = True,
) -> None:
    """As `reference`, on the device, without sorting; `logits` is contiguous."""
    scores, weights = _scores_and_weights(logits, temperature)
    least = scores.amax(-1) + log_min_p
    if limits_k:
        radix_select.rule_out_beyond_count(logits, weights, scores, top_k)
    bound = _bound(weights, top_p)
    radix_select.rule_out_beyond_sum(logits, weights, scores, bound, least)


def _scores_and_weights(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (K, V) float32, with 0 for -0, and weights (K, V) int32 from 0 to 2^30."""
    scores = logits / temperature[:, None] + 0.0
    weights = (scores - scores.amax(-1, keepdim=True)).exp_().mul_(UNIT).round_()
    return scores, weights.to(torch.int32)


def _bound(weights: Tensor, top_p: Tensor) -> Tensor:
    """The sum of weights that has to be reached, (K,) int64, at least 1."""
    total = weights.sum(-1, dtype=torch.int64)
    return (total.double() * top_p.double()).ceil().long().clamp(min=1)
