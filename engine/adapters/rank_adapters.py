"""The adapters of a rank other than 0, which are read, copied and forgotten as rank 0 commands."""

from __future__ import annotations

from concurrent.futures import Future

from engine.adapters.adapter_reader import AdapterReader
from engine.adapters.adapters import DeviceSlots
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.errors import AdapterRefused
from engine.ranks.messages import (
    AdapterHeld,
    ForgetAdapter,
    HoldAdapter,
    OfAdapters,
    PlaceAdapter,
)


class RankAdapters:
    """The parts of adapters that this rank holds.

    An owner thread uses the adapters, and another thread reads files.
    """

    def __init__(self, reader: AdapterReader, slots: DeviceSlots) -> None:
        self._reader = reader
        self._slots = slots
        # adapters by number, also those being read
        self._held: dict[int, Future[Adapter]] = {}
        self._unreported: set[int] = set()

    @property
    def pending(self) -> int:
        """Count the adapters that `reports` has not reported yet."""
        return len(self._unreported)

    def do(self, command: OfAdapters) -> None:
        """Carry out a command of rank 0."""
        match command:
            case HoldAdapter(number, digest, path):
                self._held[number] = self._reader.read(path, digest)
                self._unreported.add(number)
            case PlaceAdapter(slot, number):
                self._slots.load(slot, self._held[number].result())
            case ForgetAdapter(number):
                self._held.pop(number).cancel()
                self._unreported.discard(number)

    def reports(self) -> list[AdapterHeld]:
        """Return a report of each adapter whose reading has ended since the last call."""
        done = [one for one in sorted(self._unreported) if self._held[one].done()]
        self._unreported.difference_update(done)
        return [AdapterHeld(one, _why_refused(self._held[one])) for one in done]

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()


def _why_refused(reading: Future[Adapter]) -> str | None:
    try:
        reading.result()
    except AdapterRefused as error:
        return str(error)
    return None
