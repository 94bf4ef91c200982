"""How many warps compute a row of numbers in one program."""

from __future__ import annotations


def row_warps(padded: int, most: int = 16) -> int:
    """Warps for one row of `padded` numbers: 16 numbers a thread or so, 4 warps to `most`."""
    return min(max(padded // 512, 4), most)
