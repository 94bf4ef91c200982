"""Amounts in suitable units: megabytes for a small model, gigabytes for a large one."""

from collections.abc import Sequence

_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
_DECIMAL_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))
_COUNTS = (("B", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_OPERATIONS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_FEW_MS = 0.1


def gib(num_bytes: float, digits: int = 1) -> str:
    """Write bytes in powers of 1,024, in GiB or a smaller unit."""
    return _in(_BYTES, num_bytes, digits)


def gb(num_bytes: float) -> str:
    """Write bytes in powers of 1,000, in GB or a smaller unit."""
    return _in(_DECIMAL_BYTES, num_bytes, 1)


def count(number: float, digits: int = 2) -> str:
    """Write a count in billions (B) or a smaller unit."""
    return _in(_COUNTS, number, digits)


def operations(number: float, digits: int = 1, most: str = "T") -> str:
    """Write FLOPs, in the unit `most` (T, G) or a smaller unit."""
    names = [name for name, _ in _OPERATIONS]
    return _in(_OPERATIONS[names.index(most) :], number, digits)


def ms(milliseconds: float, digits: int = 1) -> str:
    """Write milliseconds, or microseconds if they are below 0.1 ms."""
    small = milliseconds < max(_FEW_MS, 10.0**-digits)
    return f"{1e3 * milliseconds:,.{digits}f} µs" if small else f"{milliseconds:,.{digits}f} ms"


def _in(units: Sequence[tuple[str, float]], amount: float, digits: int) -> str:
    name, size = next((unit for unit in units if abs(amount) >= unit[1]), units[-1])
    whole = size == 1 and name in ("bytes", "")
    return f"{amount / size:,.{0 if whole else digits}f} {name}".rstrip()
