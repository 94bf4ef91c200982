"""The step sizes, in tokens, for which CUDA graphs are captured. Other steps are padded to them."""

from __future__ import annotations

from functools import lru_cache

# Numbers of decodes in buckets that also have other rows.
BESIDE = (0, 8, 16, 32, 64, 128, 192, 256)
NEW_TOKENS = (64, 128, 256)
TOTALS = (384, 512, 640, 768, 1024, 1280)  # sums of decodes and new tokens, in larger buckets
MOST_NEW = 1024  # default maximum number of new tokens in a captured step
SHARING_NEW_TOKENS = (128, 256, 512)  # numbers of new tokens in buckets with shared prefixes


def places_for(decodes: int) -> int:
    """Return the capacity of the smallest bucket for `decodes`, or `decodes` if none fits."""
    return next((count for count in BESIDE if count >= decodes), decodes)


def new_tokens(places: int) -> list[int]:
    """Return the numbers of new tokens of the buckets with `places` decodes, ascending."""
    few = {new for new in NEW_TOKENS if places + new < TOTALS[0]}
    many = {total - places for total in TOTALS if total - places >= NEW_TOKENS[0]}
    return sorted(few | many)


def filled(decodes: int, new: int) -> int:
    """Return the capacity for new tokens of the bucket that fits `decodes` and `new`.

    Return `new` if the step is too large for any bucket.
    """
    sizes = new_tokens(places_for(decodes))
    return next((most for most in sizes if new <= most <= MOST_NEW), new)


@lru_cache(maxsize=4096)
def padded(decodes: int, new: int) -> int:
    """Return the rows that the captured graph computes for `decodes` and `new` tokens."""
    return places_for(decodes) + filled(decodes, new)
