"""The number of warps for a program that computes one row of numbers."""

from __future__ import annotations


def row_warps(padded: int, most: int = 16) -> int:
    """Return the warps for a row of `padded` numbers: 16 per thread, from 4 to `most` warps."""
    return min(max(padded // 512, 4), most)
