"""Randomness that depends on a row's key and the token alone.

A key comes from (seed, position), so a seeded sequence draws the same noise whatever else is in
the batch, however its prompt was cut, and also after it was preempted.

Knows: seeds and positions. Does not know: the noise that a key gives (`kernels.noise`).
"""

from __future__ import annotations

import struct

import xxhash

SEED_MASK = (1 << 64) - 1


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two int32 words for the token that is to be sampled at `position`."""
    digest = xxhash.xxh3_64_digest(struct.pack("<QQ", seed & SEED_MASK, position))
    first, second = struct.unpack("<ii", digest)
    return first, second
