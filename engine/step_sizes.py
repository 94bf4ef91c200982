"""The step sizes, in tokens, for which CUDA graphs are captured. Sizes between are padded."""

from __future__ import annotations

from functools import lru_cache

BESIDE = (0, 8, 16, 32, 64, 128, 192, 256)  # decodes beside other rows
NEW_TOKENS = (64, 128, 256)
TOTALS = (384, 512, 640, 768, 1024, 1280)  # decodes and new tokens together, in larger buckets
MOST_NEW = 1024  # default maximum of new tokens in a captured step
SHARING_NEW_TOKENS = (128, 256, 512)  # new tokens beside decodes that share prefixes


def places_for(decodes: int) -> int:
    """Return how many decodes the smallest fitting bucket has, or `decodes` if no bucket fits."""
    return next((count for count in BESIDE if count >= decodes), decodes)


def new_tokens(places: int) -> list[int]:
    """Return the new tokens of the buckets with `places` decodes, ascending."""
    few = {new for new in NEW_TOKENS if places + new < TOTALS[0]}
    many = {total - places for total in TOTALS if total - places >= NEW_TOKENS[0]}
    return sorted(few | many)


def filled(decodes: int, new: int) -> int:
    """Return the number of new tokens that the bucket of `decodes` and `new` holds.

    Return `new` if the step is too large for any bucket.
    """
    sizes = new_tokens(places_for(decodes))
    return next((most for most in sizes if new <= most <= MOST_NEW), new)


@lru_cache(maxsize=4096)
def padded(decodes: int, new: int) -> int:
    """Return the rows that the captured graph computes for `decodes` and `new` tokens."""
    return places_for(decodes) + filled(decodes, new)
