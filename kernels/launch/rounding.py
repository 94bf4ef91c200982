"""The rounding of sizes on the host.

Triton has functions of the same names, but on the host each call needs microseconds to unwrap
constants. A step that is launched makes about 290 calls.
"""

from __future__ import annotations


def cdiv(total: int, part: int) -> int:
    """Return the number of parts of size `part`, which is positive, that contain `total`."""
    return -(-total // part)


def next_power_of_2(least: int) -> int:
    """Return the smallest power of 2 that is at least `least`, which is positive."""
    return 1 << (least - 1).bit_length()
