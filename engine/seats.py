"""Small numbers for the sequences that run, so that what is kept for each fits in an array.

A seat is taken at admission and given back when the sequence no longer runs. It may be taken
again at once: a step on its way that still writes for the one who left comes, on the device,
before whatever is launched for the next.

Knows: numbers below a bound. Does not know: what lies at a seat.
"""

from __future__ import annotations


class Seats:
    """Numbers 0 to count - 1, the lowest free one first as long as nobody left."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))

    def take(self) -> int:
        """A seat that nobody has; the caller keeps to the bound."""
        return self._free.pop()

    def give_back(self, seat: int) -> None:
        """Free a seat."""
        self._free.append(seat)
