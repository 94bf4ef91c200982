"""The units of a prefix on several ranks. Each rank holds one part of every unit.

A unit is a KV block, or a piece of a recurrent state of the same size. The parts of a unit are
joined in the order of ranks. For a read, rank 0 waits for the other ranks' parts, and no step is
launched while it waits. A write is sent to all ranks, and each rank takes its part. The blocks'
fingerprint includes the numbers of ranks and stages, so units of another division are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from engine.errors import NotCarried
from engine.exchange.units import Rows, UnitMemory
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import (
    DescribeUnits,
    OfUnits,
    ReadUnits,
    UnitBytes,
    UnitShape,
    WriteUnits,
)

PATIENCE_S = 60.0  # maximum seconds to wait for a rank, which first finishes its steps
PART_BYTES = 96 << 10  # maximum bytes in one report


@dataclass(slots=True)
class RanksUnits:
    """The units of all ranks, used by one thread of rank 0. Implements `UnitMemory`."""

    own: UnitMemory
    others: OtherRanks
    catch_up: Callable[[], None]  # launches on rank 0 the steps already sent to other ranks
    _sizes: list[int] = field(default_factory=list)

    @property
    def unit_bytes(self) -> int:
        """The bytes of one unit on all ranks. Raises RankGone, NotCarried."""
        return sum(self._parts())

    @property
    def state_units(self) -> int:
        """The number of units of one recurrent state, the same on all ranks."""
        return self.own.state_units

    def read(self, blocks: Rows, states: Rows) -> bytes:
        """Read all ranks' parts of the units, and join them. Raises RankGone."""
        sizes = self._parts()
        self._tell(ReadUnits(blocks.tolist(), states.tolist()))
        units = np.empty((len(blocks) + len(states), sum(sizes)), np.uint8)
        columns = np.split(units, np.cumsum(sizes)[:-1], axis=1)
        columns[0][:] = _in_rows(self.own.read(blocks, states), sizes[0])
        for place, (column, size) in enumerate(zip(columns[1:], sizes[1:], strict=True)):
            column[:] = _in_rows(self._received(place), size)
        return units.tobytes()

    def write(self, blocks: Rows, states: Rows, payload: memoryview) -> None:
        """Write units to the same slots and rows of all ranks. Raises RankGone."""
        sizes = self._parts()
        starts = [0, *np.cumsum(sizes)[:-1].tolist()]
        self._tell(WriteUnits(blocks.tolist(), states.tolist(), starts, bytes(payload)))
        own = _in_rows(payload, sum(sizes))[:, : sizes[0]]
        self.own.write(blocks, states, memoryview(own.tobytes()))

    def _tell(self, command: OfUnits) -> None:
        self.catch_up()
        self.others.tell(command)

    def _parts(self) -> list[int]:
        if not self._sizes:
            self._tell(DescribeUnits())
            places = range(len(self.others))
            shapes = [self.others.wait_for(UnitShape, place, PATIENCE_S) for place in places]
            if any(one.state_units != self.own.state_units for one in shapes):
                raise NotCarried("the ranks' parts of a recurrent state have different sizes")
            self._sizes = [self.own.unit_bytes, *(one.unit_bytes for one in shapes)]
        return self._sizes

    def _received(self, place: int) -> bytes:
        parts = list[bytes]()
        is_last = False
        while not is_last:
            part = self.others.wait_for(UnitBytes, place, PATIENCE_S)
            parts.append(part.payload)
            is_last = part.is_last
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class RankUnits:
    """The units of a rank other than 0, which carries out rank 0's commands."""

    own: UnitMemory
    rank: int

    def do(self, command: OfUnits) -> Iterator[UnitShape | UnitBytes]:
        """Carry out a command of rank 0, and yield the reports for rank 0.

        Yields one `UnitShape` for `DescribeUnits`, one or more `UnitBytes` for `ReadUnits`, and
        nothing for `WriteUnits`. A command takes effect only while the caller iterates, so the
        caller must read all reports.
        """
        match command:
            case DescribeUnits():
                yield UnitShape(self.own.unit_bytes, self.own.state_units)
            case ReadUnits(blocks, states):
                payload = self.own.read(_rows(blocks), _rows(states))
                for start in range(0, len(payload), PART_BYTES):
                    end = start + PART_BYTES
                    yield UnitBytes(payload[start:end], end >= len(payload))
            case WriteUnits(blocks, states, starts, payload):
                size = len(payload) // (len(blocks) + len(states))
                first = starts[self.rank]
                part = _in_rows(payload, size)[:, first : first + self.own.unit_bytes]
                self.own.write(_rows(blocks), _rows(states), memoryview(part.tobytes()))


def _in_rows(
    payload: bytes | memoryview, size: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.frombuffer(payload, np.uint8).reshape(-1, size)


def _rows(numbers: list[int]) -> Rows:
    return np.array(numbers, np.int64)
