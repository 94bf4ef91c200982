"""The top-k, top-p and min-p filters, which set the logits of excluded tokens to -inf.

    1. top-k keeps the k likeliest tokens,
    2. top-p keeps the fewest of these, likeliest first, that together have p of the probability,
    3. min-p keeps tokens with at least p times the likeliest token's probability.

Of tokens with equal scores, the one with the lower id counts as likelier. Probabilities are
compared as integers. A token's weight is its probability divided by the likeliest token's
probability, in units of 2^-27. A sum of integers does not depend on their order. A weight is
computed by operations that every device rounds in the same manner. The reference sorts and the
device searches (`threshold_search`), but both keep the same tokens.

On the device one program filters a row. The program reads the row once to find its range, a few
times to find each threshold, and once to apply the thresholds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sampling import threshold_search as search
from kernels.sampling.threshold_search import (
    find_threshold,
    key_of,
    load_scores,
    score_of,
    weight_of,
)

RULED_OUT = float("-inf")
_WEIGHTLESS = tl.constexpr(23.0)  # a token whose score is this far below the greatest has weight 0
_NUM_WARPS = 16
_REGISTERS = 64  # registers per thread, so that a multiprocessor runs two programs at a time
_BYTES_A_LANE = 16  # bytes of a row's logits that a lane loads at a time


def reference(
    logits: Tensor,
    rows: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    log_min_p: Tensor,
) -> None:
    """Set the excluded logits of `rows` (K,) int64 of `logits` (R, V) to -inf.

    Plain PyTorch. `logits` have any float dtype. `temperature` is (K,) float32, above 0. `top_k` is
    (K,) int64. A number of V or more keeps all tokens. `top_p` is (K,) float32. A number above 1
    keeps all tokens. `log_min_p` is (K,) float32.
    """
    scores = logits[rows].float() * temperature.reciprocal()[:, None] + 0.0  # turns -0 into 0
    values, ids = scores.sort(dim=-1, descending=True, stable=True)
    kept = torch.arange(logits.shape[1], device=logits.device) < top_k[:, None]
    masses = torch.where(kept, weights(values).long(), 0)
    bound = (masses.sum(-1).double() * top_p.double()).ceil().long().clamp(min=1)
    kept &= masses.cumsum(-1) - masses < bound[:, None]
    kept &= values >= values[:, :1] + log_min_p[:, None]
    kept = torch.zeros_like(kept).scatter_(1, ids, kept)
    logits[rows] = logits[rows].masked_fill(~kept, RULED_OUT)


def weights(scores: Tensor) -> Tensor:
    """Return the weights of tokens, relative to the row's likeliest: (K, V) int32, 0 to 2^27.

    exp(score - greatest) is computed as a power of 2. The fractional part of the exponent goes
    through a polynomial. IEEE 754 defines each of these operations to the bit, and the kernel uses
    the same operations.
    """
    below = (scores - scores.amax(-1, keepdim=True)) * search.STEPS.value
    steps = below.clamp(min=search.LEAST.value).to(torch.int32)
    x = ((steps & 0x7FFFFF) | 0x3F800000).view(torch.float32) - 1.0
    power = search.C5.value * x
    for factor in (search.C4, search.C3, search.C2, search.C1):
        power = (power + factor.value) * x
    split = (((steps >> 23) + 154) << 23).view(torch.float32)
    weighed: Tensor = (power + 1.0) * split + 0.5
    return weighed.to(torch.int32)


def launch(
    logits: Tensor,
    rows: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    log_min_p: Tensor,
) -> None:
    """Compute `reference` on the device without sorting. `logits` must be contiguous."""
    if not len(rows):
        return
    _top_k_top_p_kernel[(len(rows),)](
        logits,
        rows,
        temperature,
        top_k,
        top_p,
        log_min_p,
        V=logits.shape[1],
        LANES=32 * _NUM_WARPS,
        EACH=_BYTES_A_LANE // logits.itemsize,
        num_warps=_NUM_WARPS,
        maxnreg=_REGISTERS,
        enable_fp_fusion=False,  # rounds like the reference
    )


@triton.jit
def _top_k_top_p_kernel(
    logits: tl.tensor,
    rows: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    log_min_p: tl.tensor,
    V: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
) -> None:
    index = tl.program_id(0)
    logits += tl.load(rows + index) * V
    inverse = tl.math.div_rn(1.0, tl.load(temperature + index))
    share = tl.load(top_p + index)
    least, greatest, count, broken = _range(logits, inverse, V, LANES, EACH)
    if (broken > 0) | (count == 0):
        return  # the row has no finite score, or a score is NaN or inf
    top = key_of(greatest)
    wanted, nothing = tl.load(top_k + index), tl.full([], 0, tl.int64)
    # Keep all tokens above the key `there`, and `needed` tokens that have this key, lowest ids
    # first.
    there = key_of(tl.maximum(least, greatest - _WEIGHTLESS)) - 1
    if share > 1.0:
        there = tl.full([], -2147483648, tl.int32)
    needed = nothing
    if wanted < count:
        low = key_of(least)
        there, above, _ = find_threshold(
            logits, inverse, greatest, low, top, wanted, share, nothing, False, V, LANES, EACH
        )
        needed = wanted - above
    if share <= 1.0:
        mass_there = needed * weight_of(score_of(there), greatest)
        there, above, wanted = find_threshold(
            logits, inverse, greatest, there, top, wanted, share, mass_there, True, V, LANES, EACH
        )
        each = tl.maximum(weight_of(score_of(there), greatest), 1).to(tl.int64)
        needed = (wanted - above + each - 1) // each
    lowest = greatest + tl.load(log_min_p + index)
    _apply(logits, inverse, there, needed, lowest, V, LANES, EACH)


@triton.jit
def _range(
    logits: tl.tensor, inverse: tl.tensor, V: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr
) -> tl.tensor:
    """Find the minimum finite score and the maximum. Count scores above -inf, and NaN or inf."""
    least = tl.full([LANES], float("inf"), tl.float32)
    greatest = tl.full([LANES], float("-inf"), tl.float32)
    count, broken = tl.zeros([LANES], tl.int32), tl.zeros([LANES], tl.int32)
    for start in tl.range(0, V, LANES * EACH):
        score, _, _ = load_scores(logits, start, inverse, V, LANES, EACH)
        allowed = score > float("-inf")
        count += tl.sum(allowed.to(tl.int32), axis=1)
        broken += EACH - tl.sum((score < float("inf")).to(tl.int32), axis=1)
        least = tl.minimum(least, tl.min(tl.where(allowed, score, float("inf")), axis=1))
        greatest = tl.maximum(greatest, tl.max(score, axis=1))
    least, greatest = tl.min(least, axis=0), tl.max(greatest, axis=0)
    return least, greatest, tl.sum(count, axis=0), tl.sum(broken, axis=0)


@triton.jit
def _apply(
    logits: tl.tensor,
    inverse: tl.tensor,
    there: tl.tensor,
    needed: tl.tensor,
    lowest: tl.tensor,
    V: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
) -> None:
    """Keep tokens above key `there`, and the first `needed` tokens that have this key.

    Tokens whose scores are below `lowest` are not kept.
    """
    seen = tl.full([], 0, tl.int32)
    for start in tl.range(0, V, LANES * EACH):
        score, token, logit = load_scores(logits, start, inverse, V, LANES, EACH)
        key = key_of(score)
        is_there = ((key == there) & (token < V)).to(tl.int32)
        of_lanes = tl.sum(is_there, axis=1)
        before = seen + tl.cumsum(of_lanes, axis=0) - of_lanes
        # the number of each token among the tokens that have key `there`, from 1
        number = before[:, None] + tl.cumsum(is_there, axis=1)
        seen += tl.sum(of_lanes, axis=0)
        kept = (key > there) | ((is_there == 1) & (number <= needed))
        kept &= score >= lowest
        tl.store(logits + token, tl.where(kept, logit, float("-inf")), mask=token < V)
