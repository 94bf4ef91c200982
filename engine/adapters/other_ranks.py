"""The commands of rank 0 to the other ranks: read an adapter, copy it to a slot, forget it.

    rank 0     hold --all ranks hold it--> place in slots, once or repeatedly --> forget
    others     read in a thread, report    copy

Only rank 0 decides which adapters are in host memory and in slots. Commands go through the same
ring of messages as steps, so slots change between the same two steps on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.adapters.adapters import DeviceSlots
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.errors import AdapterRefused
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import AdapterHeld, ForgetAdapter, HoldAdapter, PlaceAdapter


@dataclass(slots=True)
class _Held:
    """An adapter that the other ranks must hold. Ranks in `awaited` have not reported it yet."""

    number: int
    awaited: int
    refused: str | None = None


@dataclass(slots=True)
class OtherRanksAdapters:
    """The host memory of the other ranks. Implements `OtherHosts`. Used by one thread only."""

    others: OtherRanks
    _held: dict[bytes, _Held] = field(default_factory=dict)
    _num_told: int = 0

    def hold(self, digest: bytes, path: str) -> bool:
        """Make all ranks read an adapter, and return whether all hold it. Raises RankGone."""
        self._take()
        held = self._held.get(digest)
        if held is None:
            held = self._held[digest] = _Held(self._num_told, len(self.others))
            self._num_told += 1
            self.others.tell(HoldAdapter(held.number, digest, path))
        if held.refused is not None:
            raise AdapterRefused(held.refused)
        return not held.awaited

    def place(self, slot: int, digest: bytes) -> None:
        """Make all ranks copy an adapter that they hold to `slot`. Raises RankGone."""
        held = self._held[digest]
        assert not held.awaited, "all ranks hold it"
        self.others.tell(PlaceAdapter(slot, held.number))

    def forget(self, digest: bytes) -> None:
        """Make all ranks forget an adapter. Raises RankGone."""
        held = self._held.pop(digest, None)
        if held is not None:
            self.others.tell(ForgetAdapter(held.number))

    def _take(self) -> None:
        reports = self.others.take(AdapterHeld)
        if not reports:
            return
        by_number = {held.number: held for held in self._held.values()}
        for _, report in reports:
            held = by_number.get(report.number)
            if held is not None:  # None if rank 0 forgot the adapter before the report
                held.awaited -= 1
                held.refused = held.refused or report.refused


@dataclass(frozen=True, slots=True)
class RanksSlots:
    """The adapters' slots on all ranks. Implements `DeviceSlots`. `own` are rank 0's slots."""

    own: DeviceSlots
    others: OtherRanksAdapters
    catch_up: Callable[[], None]  # launches on rank 0 the steps already sent to other ranks

    @property
    def num_slots(self) -> int:
        return self.own.num_slots

    def load(self, slot: int, adapter: Adapter) -> None:
        """Copy an adapter to a slot on all ranks. Raises RankGone."""
        self.catch_up()
        self.others.place(slot, adapter.digest)
        self.own.load(slot, adapter)
