"""The batch shapes for which graphs are captured.

    decodes   1, 2, 4, 8, 16, 24, 32, 64, 72 ... rows of one token, up to the number of batch slots
    mixed     0, 8, 16, 32, 64 ... decodes beside one, two or more other rows, which have 64, 128,
              256 tokens together, or 384, 512 ... tokens together with the decodes
    sharing   4, 8, 16, 32 ... decodes, alone and with 128, 256, 512 tokens of other rows

The bucket decides which attention kernels are launched. Buckets for one and for two rows of new
tokens split the rows' keys finely. Decodes that read prefixes together have buckets of their own,
because their attention takes two launches. The time of a matrix product depends on the number of
tokens, and some numbers of tokens take longer than larger numbers. The sizes that the scheduler
also needs are in `engine.step_sizes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from engine.execution.graphs.bucket import GraphBucket
from engine.step_sizes import BESIDE, SHARING_NEW_TOKENS, new_tokens

FEW_DECODES, MANY_DECODES = 32, 64  # decode-only buckets between these counts would save no time
FEW_PREFILLS = (1, 2)
MIN_PREFILLS, MAX_PREFILLS = 8, 32  # minimum and maximum number of prefills in a mixed bucket
SHARING = (4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
# The numbers of decodes in buckets that have shared prefixes and also other rows.
SHARING_BESIDE = (16, 64, 128, 256)
TOKENS_PER_PREFILL = 16


def all_buckets(num_batch_slots: int, max_tokens: int, group_rows: int) -> list[GraphBucket]:
    """Return the buckets of `CapturedSteps`."""
    buckets = list(buckets_for(num_batch_slots, max_tokens))
    if group_rows:
        buckets += sharing_buckets(num_batch_slots, max_tokens, group_rows)
    return buckets


def buckets_for(num_batch_slots: int, max_tokens: int) -> Iterator[GraphBucket]:
    """Yield the buckets of decodes and of mixed steps."""
    most = min(num_batch_slots, max_tokens)
    small = range(8, FEW_DECODES + 1, 8)
    for decodes in sorted({1, 2, 4, *small, *range(MANY_DECODES, most + 1, 8), most}):
        if 0 < decodes <= most:
            yield GraphBucket(decodes)
    for decodes in [
        count for count in sorted({*BESIDE, num_batch_slots}) if count <= num_batch_slots
    ]:
        for new in [size for size in new_tokens(decodes) if size <= max_tokens]:
            for prefills in (*FEW_PREFILLS, _many_prefills(new)):
                yield GraphBucket(decodes, new, prefills)


def sharing_buckets(
    num_batch_slots: int, max_tokens: int, group_rows: int
) -> Iterator[GraphBucket]:
    """Yield the buckets of decodes that share prefixes, alone and beside other rows.

    There are few such buckets, because sharing saves time only with many decodes.
    """
    most = min(num_batch_slots, max_tokens)
    for decodes in sorted({*SHARING, most}):
        if 1 < decodes <= most:
            yield GraphBucket(decodes, group_rows=group_rows)
    for new, decodes in product(SHARING_NEW_TOKENS, sorted({*SHARING_BESIDE, num_batch_slots})):
        if new <= max_tokens and 1 < decodes <= num_batch_slots:
            for prefills in (FEW_PREFILLS[-1], _many_prefills(new)):
                yield GraphBucket(decodes, new, prefills, group_rows)


def _many_prefills(new: int) -> int:
    return min(max(new // TOKENS_PER_PREFILL, MIN_PREFILLS), MAX_PREFILLS)
