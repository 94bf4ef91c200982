"""Small numbers for running sequences, so that per-sequence state on the device is an array.

A seat is taken at admission and given back when the sequence no longer runs. It may be taken
again at once: a step on its way that still writes for the old sequence runs, on the device,
before whatever is launched for the new one.

Knows: numbers below a bound. Does not know: what lies at a seat.
"""

from __future__ import annotations


class Seats:
    """Numbers 0 to count - 1, the lowest free one first as long as nobody left."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))

    def take(self) -> int:
        """A free seat; the caller makes sure that there is one."""
        return self._free.pop()

    def give_back(self, seat: int) -> None:
        """Free a seat."""
        self._free.append(seat)
