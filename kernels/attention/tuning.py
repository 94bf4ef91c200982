"""The tile sizes of attention. They were measured once on an H200.

The sizes depend only on the head dim and the dtype, so nothing is tuned while serving.
docs/lab/performance-log.md has the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

MAX_QUERIES = 64  # maximum number of query rows for the registers of a decode program
# The minimum number of tokens in a prefix that rows read together. A shorter prefix stays in the L2
# cache, so reading it separately for each row costs little.
LEAST_SHARED_TOKENS = 1_024
_LEAST_SAVED_BYTES = 2**26  # minimum bytes of KV that sharing must save in one layer

# The minimum window in keys for Hopper's kernel. With a smaller window, its programs have too few
# tiles compared with their start-up time (measured, decision 156).
LEAST_HOPPER_WINDOW = 512
SHORT_WINDOW = 128  # gpt-oss's window in keys, the only short window that was measured
_PROGRAMS = 132  # number of multiprocessors of an H200


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """The parameters by which keys are divided among decode programs (`split_sizes`)."""

    tile: int
    warps: int
    stages: int  # number of tiles being loaded at the same time, plus one
    at_once: int
    alone: float  # time of a tile if a program runs alone, relative to a fully used device
    begin_keys: int  # start-up time of a split, as the number of keys read in that time
    least_keys: int  # minimum number of keys in a split; a multiple of `tile`
    splits: int  # maximum number of splits of all KV heads, beyond the first split of each item

    def most_splits(self, kv_heads: int) -> int:
        """Return the maximum number of splits of a KV head, beyond the first split of each item."""
        return max(self.splits // kv_heads, 1)


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """The parameters of prefill attention: tile sizes of queries and keys, and others."""

    queries: int  # number of query rows of a program; each query head counts
    tile: int
    warps: int
    stages: int
    # Number of programs that run at the same time; if there are fewer, keys are divided.
    programs: int
    least_keys: int
    is_for_hopper: bool = False  # True: use `hopper_prefill`; `warps` is then that of one consumer
    halves: int = 1  # 2: each of Hopper's consumers computes half of the output's columns


def rows_together(group: int) -> int:
    """Return the number of decode rows of one program, with `group` query heads per KV head.

    It is a power of two. It is 1 if two rows have too many heads together.
    """
    return 1 << max((MAX_QUERIES // group).bit_length() - 1, 0)


def worth_sharing(saved_tokens: int, token_bytes: int) -> bool:
    """Return whether reading shared prefixes together (`SharedPrefix`) is worth a second launch.

    `saved_tokens` is the number of tokens whose KV is not read again: the sum of (rows - 1) *
    shared tokens, over groups that share at least LEAST_SHARED_TOKENS. `token_bytes` is the size of
    a token's keys and values in one layer.
    """
    return saved_tokens * token_bytes >= _LEAST_SAVED_BYTES


def decode_tuning(head_dim: int, dtype: torch.dtype) -> DecodeTuning:
    """Choose the tuning for a head dim of up to 512.

    Above 256, it is chosen by the compiler's report, not by measurement.
    """
    # With two warps, half as many instructions are executed (measured for 16-bit numbers and head
    # dim 128).
    warps = 4 if dtype == torch.float32 or head_dim > 128 else 2
    return DecodeTuning(
        tile=_keys_of_16_kib(head_dim, dtype.itemsize),
        warps=8 if head_dim > 256 else warps,
        stages=2 if dtype == torch.float32 else 3,
        at_once=4 * _PROGRAMS,
        alone=0.5,
        begin_keys=128,
        least_keys=128,
        splits=16 * _PROGRAMS,
    )


def shared_tuning(head_dim: int, dtype: torch.dtype) -> DecodeTuning:
    """Choose the tuning for shared keys: smaller tiles, of which more are loaded at a time."""
    alone = decode_tuning(head_dim, dtype)
    if dtype == torch.float32 or head_dim > 128:
        return alone
    return replace(
        alone,
        tile=max(alone.tile // 2, 16),
        warps=4,
        stages=5,
        at_once=3 * _PROGRAMS,
        alone=0.3,
        begin_keys=192,
    )


def window_tuning(head_dim: int, dtype: torch.dtype) -> DecodeTuning:
    """Choose the tuning for attention with a window: tiles that mostly fit into registers.

    It was chosen by the compiler's report, not by measurement (docs/design/kernels.md).
    """
    alone = decode_tuning(head_dim, dtype)
    if dtype == torch.float32:
        return alone
    tile = min(_keys_of_16_kib(head_dim, itemsize=2), 64)
    return replace(alone, tile=tile, warps=max(alone.warps, 4))


def prefill_tuning(head_dim: int, dtype: torch.dtype, window: int | None = None) -> PrefillTuning:
    """Choose the tuning for a head dim of up to 512: the largest tiles that fit on the device.

    For a short window the tiles are smaller, because most of a large tile would be masked. Above a
    head dim of 256, there are twice as many warps.
    """
    is_small = head_dim <= 128
    if window is not None and window <= SHORT_WINDOW and is_small and dtype != torch.float32:
        return PrefillTuning(128, 32, 4, 4, programs=_PROGRAMS, least_keys=256)
    if dtype == torch.float32:
        queries, tile, warps, stages = (32, 32, 4, 1) if is_small else (16, 16, 4, 1)
    else:
        queries, tile, warps, stages = (256, 64, 8, 3) if is_small else (64, 32, 4, 2)
    if head_dim > 256:
        warps = 8
    return PrefillTuning(queries, tile, warps, stages, programs=_PROGRAMS, least_keys=256)


def hopper_tuning(head_dim: int) -> PrefillTuning:
    """Choose the tuning of Hopper's kernel for 16-bit numbers and head dims 64, 128, 256 and 512.

    Shared memory must have room for the queries and two stages of keys and values. A consumer has
    registers for 64 rows of 256 columns.
    """
    return PrefillTuning(
        queries=64 if head_dim > 256 else 128,
        tile=min(16_384 // head_dim, 128),
        warps=4,
        stages=2,
        programs=_PROGRAMS,
        least_keys=256,
        is_for_hopper=True,
        halves=2 if head_dim > 256 else 1,
    )


def _keys_of_16_kib(head_dim: int, itemsize: int) -> int:
    """Return how many keys of `head_dim` numbers, padded, take 16 KiB: a power of 2, 16 to 128."""
    padded = 1 << (head_dim - 1).bit_length()
    return min(max(16_384 // (padded * itemsize), 16), 128)
