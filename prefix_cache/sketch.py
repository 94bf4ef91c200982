"""How often keys were seen lately, in little room: a count-min sketch that ages.

A key's count is never too low between two halvings, and too high only where it shares all of its
counters with keys seen more often. When `sample` keys have been counted every counter is halved,
so what was popular once does not stay so.

Knows: keys of 16 bytes. Does not know: what they are of, or whether that is in any tier.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefix_cache.hashing import KEY_BYTES

ROWS = 4
MAX_COUNT = 15  # a counter stops here: it need not tell more apart, and halving forgets sooner


class FrequencySketch:
    """`width` counters (a power of two) in each of four rows, a byte each."""

    def __init__(self, width: int, sample: int | None = None) -> None:
        """`sample`: keys counted between two halvings; None: ten for each column."""
        if width < 1 or width & (width - 1):
            raise ValueError(f"width {width} is no power of two")
        self._counts: npt.NDArray[np.uint8] = np.zeros((ROWS, width), dtype=np.uint8)
        self._mask = np.uint64(width - 1)
        self._sample = 10 * width if sample is None else sample
        self._counted = 0

    def add(self, keys: bytes) -> None:
        """Count each of these keys once more."""
        for row, columns in enumerate(self._columns(keys)):
            counts = self._counts[row]
            counts[columns] = np.minimum(counts[columns] + 1, MAX_COUNT)
        self._counted += len(keys) // KEY_BYTES
        if self._counted >= self._sample:
            self._counts >>= 1
            self._counted //= 2

    def count(self, key: bytes) -> int:
        """Return how often a key was counted lately, perhaps too high."""
        columns = self._columns(key)[:, 0]
        return int(self._counts[np.arange(ROWS), columns].min())

    def _columns(self, keys: bytes) -> npt.NDArray[np.uint64]:
        """(ROWS, n): each key's counter in each row. Keys are digests, so their bits will do."""
        halves = np.frombuffer(keys, dtype="<u8").reshape(-1, 2)
        rows = np.arange(1, ROWS + 1, dtype=np.uint64)[:, None]
        mixed = halves[:, 0] + rows * (halves[:, 1] | np.uint64(1))
        columns: npt.NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(32))) & self._mask
        return columns
