"""The rounding of sizes on the host.

Triton has functions of the same names, which take microseconds on the host to unwrap constants. A
launched step has some 290 calls.
"""

from __future__ import annotations


def cdiv(total: int, part: int) -> int:
    """Return how many parts of size `part`, which is positive, hold `total`."""
    return -(-total // part)


def next_power_of_2(least: int) -> int:
    """Return the smallest power of 2 that is at least `least`, which is positive."""
    return 1 << (least - 1).bit_length()
