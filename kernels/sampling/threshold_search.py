"""The search for the score at which a row's likeliest tokens reach a count or a sum of weights.

The search replaces a sort. Eight scores, called cuts, divide a range of scores. Each pass over the
row counts the tokens at or above each cut, or sums their weights. The next range is the part
between two cuts. The cuts divide the range evenly by value, because scores are usually spread
smoothly. After eight passes without a result, the cuts divide the range evenly by key, so that no
row needs more than 19 passes. All sums are of integers, so the order of addition changes nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

LEAST = tl.constexpr(-29.0 * 2**23)  # in steps: a token with a lower score has weight 0
STEPS = tl.constexpr(12102203.161561485)  # 2^23 / ln 2: steps per unit of score

# 2^x for x in [0, 1) as 1 + x (C1 + x (C2 + ...)): relative error 1.7e-7, strictly rising.
C1 = tl.constexpr(0.6931512951850891)
C2 = tl.constexpr(0.24016444385051727)
C3 = tl.constexpr(0.05579991638660431)
C4 = tl.constexpr(0.009017026983201504)
C5 = tl.constexpr(0.0018671315629035234)
_CUTS = tl.constexpr(8)
_BY_VALUE = tl.constexpr(8)  # number of passes whose cuts divide the range evenly by value


@triton.jit
def weight_of(score: tl.tensor, greatest: tl.tensor) -> tl.tensor:
    """Compute `top_k_top_p.weights`, int32. The kernel must not fuse products and sums."""
    steps = tl.maximum((score - greatest) * STEPS, LEAST).to(tl.int32)
    x = ((steps & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
    power = ((((C5 * x + C4) * x + C3) * x + C2) * x + C1) * x + 1.0
    split = (((steps >> 23) + 154) << 23).to(tl.float32, bitcast=True)
    return (power * split + 0.5).to(tl.int32)


@triton.jit
def key_of(score: tl.tensor) -> tl.tensor:
    """Map scores to int32 keys in the same order. No score may be -0."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def score_of(key: tl.tensor) -> tl.tensor:
    """Return the score with this key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_scores(
    logits: tl.tensor,
    start: tl.tensor,
    inverse: tl.tensor,
    V: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
) -> tl.tensor:
    """Load scores, tokens and logits of a row, (LANES, EACH), from token `start` on.

    Scores beyond the end of the row are -inf.
    """
    token = start + tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    logit = tl.load(logits + token, mask=token < V, other=float("-inf")).to(tl.float32)
    return logit * inverse + 0.0, token, logit


@triton.jit
def _cuts(low: tl.tensor, high: tl.tensor, by_key: tl.tensor) -> tl.tensor:
    """Choose keys above `low` and at most `high`. The first key is `low` + 1."""
    first, last = score_of(low), score_of(high)
    width = high.to(tl.int64) - low
    cuts: tl.tensor = (low + 1,)
    for j in tl.static_range(1, _CUTS):
        by_value = key_of(first + (last - first) * (j / _CUTS) + 0.0)
        evenly = (low + 1 + ((width * j) >> 3)).to(tl.int32)
        cut = tl.where(by_key, evenly, by_value)
        cuts = cuts + (tl.minimum(tl.maximum(cut, low + 1), high),)  # noqa: RUF005
    return cuts


@triton.jit
def _zeros(number: tl.constexpr, LANES: tl.constexpr) -> tl.tensor:
    zeros: tl.tensor = ()
    for _ in tl.static_range(_CUTS):
        zeros = zeros + (tl.zeros([LANES], number),)  # noqa: RUF005
    return zeros


@triton.jit
def find_threshold(
    logits: tl.tensor,
    inverse: tl.tensor,
    greatest: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    wanted: tl.tensor,
    share: tl.tensor,
    mass_at_low: tl.tensor,
    WEIGHED: tl.constexpr,
    V: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
) -> tl.tensor:
    """Find the key of the token that reaches the sum. Return (key, sum above it, sum to reach).

    The key is from `low` to `high`. The sum is the number of tokens and must reach `wanted`. If
    WEIGHED, the sum is that of weights and must reach `share` of the total. The total is the weight
    of tokens above `low`, plus `mass_at_low`.
    """
    number: tl.constexpr = tl.int64 if WEIGHED else tl.int32
    above = tl.full([], 0, number)
    if WEIGHED:
        wanted = _share_of(mass_at_low, share)
    done = 0
    while low < high:
        cuts, sums = _cuts(low, high, done >= _BY_VALUE), _zeros(number, LANES)
        least = tl.full([LANES], 2147483647, tl.int32)
        most = tl.full([LANES], -2147483648, tl.int32)
        for start in tl.range(0, V, LANES * EACH):
            score, _, _ = load_scores(logits, start, inverse, V, LANES, EACH)
            key = key_of(score)
            weight = weight_of(score, greatest) if WEIGHED else 1
            sums = _added(sums, cuts, key, weight)
            least = tl.minimum(least, tl.min(tl.where(key >= low, key, 2147483647), axis=1))
            most = tl.maximum(most, tl.max(tl.where(key <= high, key, -2147483648), axis=1))
        if WEIGHED and done == 0:
            wanted = _share_of(tl.sum(sums[0], axis=0) + mass_at_low, share)
        low, high = tl.maximum(low, tl.min(least, axis=0)), tl.minimum(high, tl.max(most, axis=0))
        for j in tl.static_range(_CUTS):
            summed = tl.sum(sums[j], axis=0)
            if summed >= wanted:
                low = tl.maximum(low, cuts[j])
            else:
                high = tl.minimum(high, cuts[j] - 1)
                above = tl.maximum(above, summed)
        done += 1
    return low, above, wanted


@triton.jit
def _share_of(total: tl.tensor, share: tl.tensor) -> tl.tensor:
    return tl.maximum(tl.ceil(total.to(tl.float64) * share.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _added(sums: tl.tensor, cuts: tl.tensor, key: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """Add each token's weight to the sums of all cuts that are not above the token's key."""
    more: tl.tensor = ()
    for j in tl.static_range(_CUTS):
        above = tl.sum(tl.where(key >= cuts[j], weight, 0), axis=1)
        more = more + (sums[j] + above,)  # noqa: RUF005
    return more
