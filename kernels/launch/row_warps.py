"""The number of warps for a program that computes one row of numbers."""

from __future__ import annotations


def row_warps(padded: int, most: int = 16) -> int:
    """Return the number of warps, 4 to `most`, for `padded` numbers of a row: 16 per thread."""
    return min(max(padded // 512, 4), most)
