"""Reads and writes not answered yet by the disk's process, and outcomes not reported yet."""

from __future__ import annotations

from itertools import takewhile

from storage.disk.wire import DiskEnded, DiskOutcome


class OpenRequests:
    """Reads and writes by ticket, in the order of their requests. Used by one thread only."""

    def __init__(self, read_deadline_s: float, write_deadline_s: float) -> None:
        self._read_deadline_s = read_deadline_s
        self._write_deadline_s = write_deadline_s
        self._reads: dict[int, tuple[float, int]] = {}  # start time and buffer to fill, by ticket
        self._writes: dict[int, float] = {}  # start time, by ticket
        self._ends: list[DiskEnded] = []
        self._tickets = 0

    def read(self, buffer: int, now: float) -> int:
        """Record a read into `buffer`, and return its ticket."""
        ticket = self._ticket()
        self._reads[ticket] = (now, buffer)
        return ticket

    def write(self, now: float) -> int:
        """Record a write, and return its ticket."""
        ticket = self._ticket()
        self._writes[ticket] = now
        return ticket

    def refused(self) -> int:
        """Record a read or write that could not be sent as failed, and return its ticket."""
        ticket = self._ticket()
        self._fail(ticket)
        return ticket

    def answered(self, end: DiskEnded) -> None:
        """Record an answer. An answer to a ticket that has failed is dropped."""
        if self._reads.pop(end.ticket, None) or self._writes.pop(end.ticket, None) is not None:
            self._ends.append(end)

    def give_up_late_reads(self, now: float) -> list[tuple[int, int]]:
        """Fail reads that are past their deadline, and return their tickets and buffers."""
        started = ((ticket, since, buffer) for ticket, (since, buffer) in self._reads.items())
        late = list(takewhile(lambda read: now - read[1] > self._read_deadline_s, started))
        for ticket, _, _ in late:
            del self._reads[ticket]
            self._fail(ticket)
        return [(ticket, buffer) for ticket, _, buffer in late]

    def is_write_late(self, now: float) -> bool:
        """Return whether the oldest write is past its deadline."""
        oldest = next(iter(self._writes.values()), None)
        return oldest is not None and now - oldest > self._write_deadline_s

    def fail_all(self) -> None:
        """Fail all open requests, because no more answers will come."""
        for ticket in (*self._reads, *self._writes):
            self._fail(ticket)
        self._reads, self._writes = {}, {}

    def take_ends(self) -> list[DiskEnded]:
        """Return the requests that have ended since the last call."""
        ends, self._ends = self._ends, []
        return ends

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _fail(self, ticket: int) -> None:
        self._ends.append(DiskEnded(ticket, DiskOutcome.FAILED))
