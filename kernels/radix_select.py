"""Rules out all but a row's likeliest tokens, up to the one that reaches a sum; does not sort.

A radix select on the bits of the scores:

    pass 1   cut the 2^32 possible scores, in order, into 16 parts; sum the weights above each
    pass 2   cut the part in which the sum is reached into 16 parts again
    ...      8 passes; one score is left
    ties     count the tokens with this very score, segment by segment
    apply    keep what is above it, and of those with it the first by id, as many as are needed

A row is shared out among programs by segments, so that one row alone keeps the device busy too.
What they add up are whole numbers: the order of adding changes nothing. Each pass reads from the
sums of those before it which part is left.

Knows: scores, whole weights, sums to reach. Does not know: what weights are (`keep_likeliest`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.rounding import cdiv, next_power_of_2

_SEGMENT = 2048  # tokens of a program
_CHUNK = 256  # of these at a time
_PART_BITS = 4  # a pass cuts a range of scores into 2^4 parts
_PASSES = 32 // _PART_BITS


def rule_out_beyond_count(logits: Tensor, weights: Tensor, scores: Tensor, count: Tensor) -> None:
    """Set all but the `count` likeliest tokens of `logits` to -inf, and their weights to 0.

    Of tokens with equal scores the lower id counts as likelier. All is (K, V), contiguous: logits
    and scores float32, weights int32; count (K,) int64, at least 1.
    """
    nothing_read = count  # a kernel that does not weigh has no least score
    _launch(logits, weights, scores, count, nothing_read, is_weighed=False)


def rule_out_beyond_sum(
    logits: Tensor, weights: Tensor, scores: Tensor, bound: Tensor, least: Tensor
) -> None:
    """Set to -inf the tokens behind the one with which the likeliest ones' weights reach `bound`,
    and those whose score is below `least`.

    As above; bound (K,) int64, at least 1: where it is never reached, nothing is behind it; least
    (K,) float32.
    """
    _launch(logits, weights, scores, bound, least, is_weighed=True)


def _launch(
    logits: Tensor,
    weights: Tensor,
    scores: Tensor,
    bound: Tensor,
    least: Tensor,
    *,
    is_weighed: bool,
) -> None:
    rows, vocabulary = scores.shape
    if not rows:
        return
    segments, device = cdiv(vocabulary, _SEGMENT), scores.device
    sums = torch.zeros((_PASSES, rows, 1 << _PART_BITS), dtype=torch.int64, device=device)
    ties = torch.empty((rows, segments), dtype=torch.int32, device=device)
    each = torch.ones(rows, dtype=torch.int32, device=device)
    constants = {
        "WEIGHED": is_weighed,
        "SEGMENT": _SEGMENT,
        "CHUNK": _CHUNK,
        "PART_BITS": _PART_BITS,
        "PASSES": _PASSES,
        "num_warps": 4,
    }
    grid, given = (rows, segments), (scores, weights, bound, sums)
    for done in range(_PASSES):
        _sum_kernel[grid](*given, done, rows, vocabulary, **constants)
    _tie_kernel[grid](*given, ties, each, rows, vocabulary, **constants)
    _apply_kernel[grid](
        *given,
        ties,
        each,
        least,
        logits,
        rows,
        vocabulary,
        SEGMENTS=next_power_of_2(segments),
        **constants,
    )


@triton.jit
def _key(score: tl.tensor) -> tl.tensor:
    """An int32 in the order of the scores; equal scores have equal keys."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _as_key(number: tl.tensor) -> tl.tensor:
    """The key with so many keys below it."""
    return (number - 2147483648).to(tl.int32)


@triton.jit
def _left(
    sums: tl.tensor,
    wanted: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    done: tl.tensor,
    PART_BITS: tl.constexpr,
    PASSES: tl.constexpr,
) -> tl.tensor:
    """Of the range left after `done` passes: the keys below it and the sum above it, int64."""
    PARTS: tl.constexpr = 1 << PART_BITS
    part = tl.arange(0, PARTS).to(tl.int64)
    below, above = wanted * 0, wanted * 0
    for number in tl.range(0, done):
        # Sums fall from part to part; the first stands for the whole range.
        summed = tl.load(sums + (number * rows + row) * PARTS + part)
        chosen = tl.sum(((summed >= wanted) & (part > 0)).to(tl.int64), axis=0)
        behind = tl.max(tl.where(part == chosen + 1, summed, 0), axis=0)
        above = tl.where(chosen + 1 < PARTS, behind, above)
        below += chosen << (PART_BITS * (PASSES - 1 - number))
    return below, above


@triton.jit(do_not_specialize=["done", "rows", "vocabulary"])
def _sum_kernel(
    scores: tl.tensor,
    weights: tl.tensor,
    bound: tl.tensor,
    sums: tl.tensor,
    done: tl.tensor,
    rows: tl.tensor,
    vocabulary: tl.tensor,
    WEIGHED: tl.constexpr,
    SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    PART_BITS: tl.constexpr,
    PASSES: tl.constexpr,
) -> None:
    PARTS: tl.constexpr = 1 << PART_BITS
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * SEGMENT
    column, part = tl.arange(0, CHUNK), tl.arange(0, PARTS).to(tl.int64)
    wanted = tl.load(bound + row)
    below, _ = _left(sums, wanted, row, rows, done, PART_BITS, PASSES)
    starts = _as_key(below + (part << (PART_BITS * (PASSES - 1 - done))))
    total = tl.zeros([PARTS], dtype=tl.int64)
    for start in tl.range(begin, tl.minimum(begin + SEGMENT, vocabulary), CHUNK):
        token = start + column
        inside = token < vocabulary
        score = tl.load(scores + row * vocabulary + token, mask=inside, other=float("-inf"))
        weight = inside.to(tl.int64)
        if WEIGHED:
            weight = tl.load(weights + row * vocabulary + token, mask=inside, other=0).to(tl.int64)
        over = _key(score)[:, None] >= starts[None, :]
        total += tl.sum(tl.where(over, weight[:, None], 0), axis=0)
    tl.atomic_add(sums + (done * rows + row) * PARTS + part, total, sem="relaxed")


@triton.jit(do_not_specialize=["rows", "vocabulary"])
def _tie_kernel(
    scores: tl.tensor,
    weights: tl.tensor,
    bound: tl.tensor,
    sums: tl.tensor,
    ties: tl.tensor,
    each: tl.tensor,
    rows: tl.tensor,
    vocabulary: tl.tensor,
    WEIGHED: tl.constexpr,
    SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    PART_BITS: tl.constexpr,
    PASSES: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * SEGMENT
    column = tl.arange(0, CHUNK)
    below, _ = _left(sums, tl.load(bound + row), row, rows, PASSES, PART_BITS, PASSES)
    there = _as_key(below)
    counted = tl.zeros([CHUNK], dtype=tl.int32)
    weight_there = tl.zeros([CHUNK], dtype=tl.int32)
    for start in tl.range(begin, tl.minimum(begin + SEGMENT, vocabulary), CHUNK):
        token = start + column
        inside = token < vocabulary
        score = tl.load(scores + row * vocabulary + token, mask=inside, other=float("-inf"))
        is_there = inside & (_key(score) == there)
        counted += is_there.to(tl.int32)
        if WEIGHED:
            weight = tl.load(weights + row * vocabulary + token, mask=is_there, other=0)
            weight_there = tl.maximum(weight_there, weight)
    count = tl.sum(counted, axis=0)
    tl.store(ties + row * tl.num_programs(1) + tl.program_id(1), count)
    if WEIGHED:
        # Equal scores weigh the same: whoever has any writes the same number.
        tl.store(each + row, tl.max(weight_there, axis=0), mask=count > 0)


@triton.jit(do_not_specialize=["rows", "vocabulary"])
def _apply_kernel(
    scores: tl.tensor,
    weights: tl.tensor,
    bound: tl.tensor,
    sums: tl.tensor,
    ties: tl.tensor,
    each: tl.tensor,
    least: tl.tensor,
    logits: tl.tensor,
    rows: tl.tensor,
    vocabulary: tl.tensor,
    SEGMENTS: tl.constexpr,
    WEIGHED: tl.constexpr,
    SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    PART_BITS: tl.constexpr,
    PASSES: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * SEGMENT
    column, segment = tl.arange(0, CHUNK), tl.arange(0, SEGMENTS)
    wanted = tl.load(bound + row)
    below, above = _left(sums, wanted, row, rows, PASSES, PART_BITS, PASSES)
    there = _as_key(below)
    weight = tl.maximum(tl.load(each + row), 1)
    needed = (wanted - above + weight - 1) // weight
    before = tl.load(
        ties + row * tl.num_programs(1) + segment, mask=segment < tl.program_id(1), other=0
    )
    seen = tl.sum(before, axis=0)
    for start in tl.range(begin, tl.minimum(begin + SEGMENT, vocabulary), CHUNK):
        token = start + column
        inside = token < vocabulary
        place = row * vocabulary + token
        score = tl.load(scores + place, mask=inside, other=float("-inf"))
        key = _key(score)
        is_there = (inside & (key == there)).to(tl.int32)
        number = seen + tl.cumsum(is_there, axis=0)  # of those with this score, from 1
        seen += tl.sum(is_there, axis=0)
        kept = (key > there) | ((is_there == 1) & (number <= needed))
        if WEIGHED:
            kept &= score >= tl.load(least + row)
        else:
            tl.store(weights + place, 0, mask=inside & ~kept)
        tl.store(logits + place, float("-inf"), mask=inside & ~kept)
