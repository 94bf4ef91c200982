"""Applies top-k, top-p and min-p: sets the logits of tokens that must not be drawn to -inf.

    1. top-k keeps the k likeliest tokens,
    2. top-p keeps the fewest likeliest of those whose probabilities reach p of their sum,
    3. min-p keeps those with at least p times the likeliest token's probability.

Of tokens with equal scores the lower id counts as likelier. Probabilities are compared as whole
numbers: a token weighs its probability over the likeliest token's, in units of 2^-30. The sum of
whole numbers does not depend on their order. So the reference, which sorts, and the device, which
searches for the score at which the sum is reached, keep the very same set, ties included. The
search is a radix select on the bits of the scores:

    cut the 2^32 possible scores, in order, into 16 parts; cut the part in which the sum is reached
    into 16 parts again ... 8 passes over a row; then find, in order of ids, the last token needed
    of those with that score

Knows: scores and weights. Does not know: noise or seeds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

UNIT = float(2**30)
RULED_OUT = float("-inf")
_CHUNK = 512  # tokens of a program at a time
_PART_BITS = 4  # a pass cuts a range of scores into 2^4 parts
_KEY_BITS = 32


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
    """As `reference`, on the device, without sorting."""
    scores, weights = _scores_and_weights(logits, temperature)
    kept = scores >= scores.amax(-1, keepdim=True) + log_min_p[:, None]
    if limits_k:
        among = _reached(scores, torch.ones_like(weights), top_k)
        weights = torch.where(among, weights, 0)
        kept &= among
    kept &= _reached(scores, weights, _bound(weights, top_p))
    logits.masked_fill_(~kept, RULED_OUT)


def _scores_and_weights(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (K, V) float32, with 0 for -0, and weights (K, V) int32 from 0 to 2^30."""
    scores = logits / temperature[:, None] + 0.0
    weights = (scores - scores.amax(-1, keepdim=True)).exp_().mul_(UNIT).round_()
    return scores, weights.to(torch.int32)


def _bound(weights: Tensor, top_p: Tensor) -> Tensor:
    """The sum of weights that has to be reached, (K,) int64, at least 1."""
    total = weights.sum(-1, dtype=torch.int64)
    return (total.double() * top_p.double()).ceil().long().clamp(min=1)


def _reached(scores: Tensor, weights: Tensor, bound: Tensor) -> Tensor:
    """(K, V) bool: the likeliest tokens, up to the one with which their weights reach `bound`.

    All tokens where the bound is not reached.
    """
    rows, vocabulary = scores.shape
    cut = torch.empty((rows, 1), dtype=torch.float32, device=scores.device)
    last = torch.empty((rows, 1), dtype=torch.int32, device=scores.device)
    if rows:
        _search_kernel[(rows,)](
            scores,
            weights,
            bound,
            cut,
            last,
            V=vocabulary,
            CHUNK=_CHUNK,
            PASSES=_KEY_BITS // _PART_BITS,
            PART_BITS=_PART_BITS,
            PARTS=1 << _PART_BITS,
            num_warps=8,
        )
    token = torch.arange(vocabulary, dtype=torch.int32, device=scores.device)
    return (scores > cut) | ((scores == cut) & (token <= last))


@triton.jit
def _key(score: tl.tensor) -> tl.tensor:
    """A whole number in [0, 2^32) in the order of the scores; equal scores have equal keys."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def _search_kernel(
    scores: tl.tensor,
    weights: tl.tensor,
    bound: tl.tensor,
    cut: tl.tensor,
    last: tl.tensor,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    PASSES: tl.constexpr,
    PART_BITS: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    scores += row * V
    weights += row * V
    wanted = tl.load(bound + row)
    column, part = tl.arange(0, CHUNK), tl.arange(0, PARTS).to(tl.int64)
    least = wanted * 0  # the least key of the range in which the sum is reached
    above = wanted * 0  # the sum of what is likelier than all of the range
    for number in tl.static_range(PASSES):
        starts = least + (part << (PART_BITS * (PASSES - 1 - number)))
        sums = tl.zeros([PARTS], dtype=tl.int64)
        for start in tl.range(0, V, CHUNK):
            inside = start + column < V
            key = _key(tl.load(scores + start + column, mask=inside, other=float("-inf")))
            weight = tl.load(weights + start + column, mask=inside, other=0).to(tl.int64)
            over = key[:, None] >= starts[None, :]
            sums += tl.sum(tl.where(over, weight[:, None], 0), axis=0)
        # Sums fall from part to part; the first stands for the whole range.
        chosen = tl.sum(((sums >= wanted) & (part > 0)).to(tl.int64), axis=0)
        behind = tl.max(tl.where(part == chosen + 1, sums, 0), axis=0)
        above = tl.where(chosen + 1 < PARTS, behind, above)
        least += chosen << (PART_BITS * (PASSES - 1 - number))

    # Tokens with this very score weigh the same: `needed` is how many of them are kept.
    weight_there = tl.zeros([CHUNK], dtype=tl.int64)
    score_there = tl.full([CHUNK], float("-inf"), dtype=tl.float32)
    for start in tl.range(0, V, CHUNK):
        inside = start + column < V
        score = tl.load(scores + start + column, mask=inside, other=float("-inf"))
        weight = tl.load(weights + start + column, mask=inside, other=0).to(tl.int64)
        is_there = inside & (_key(score) == least)
        weight_there = tl.maximum(weight_there, tl.where(is_there, weight, 0))
        score_there = tl.maximum(score_there, tl.where(is_there, score, float("-inf")))
    each = tl.max(weight_there, axis=0)
    needed = (wanted - above + each - 1) // tl.maximum(each, 1)
    seen = needed * 0
    last_id = tl.full([CHUNK], -1, dtype=tl.int32)
    for start in tl.range(0, V, CHUNK):
        inside = start + column < V
        score = tl.load(scores + start + column, mask=inside, other=float("-inf"))
        is_there = (inside & (_key(score) == least)).to(tl.int64)
        place = seen + tl.cumsum(is_there, axis=0) - is_there
        is_needed = (is_there == 1) & (place < needed)
        last_id = tl.maximum(last_id, tl.where(is_needed, start + column, -1))
        seen += tl.sum(is_there, axis=0)
    tl.store(cut + row, tl.max(score_there, axis=0))
    tl.store(last + row, tl.max(last_id, axis=0))
