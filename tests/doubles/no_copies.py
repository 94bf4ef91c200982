"""Pools of GPUs beside this one, without a GPU: whatever is to be copied is there at once."""

from __future__ import annotations

from engine.exchange.peer_pool import PeerPool, Slots, this_host
from engine.exchange.wire import PoolHandle
from storage.copies import CopyEvent, Passed


class NoCopies:
    """A `PeerPools` that opens everything, and the `PeerPool` of all; nothing is copied."""

    def host_of(self, where: str) -> bytes | None:
        """This host, wherever it is."""
        del where
        return this_host()

    def follow(self, mark: CopyEvent) -> None:
        """There is nothing to wait for."""

    def open(self, where: str, handle: PoolHandle) -> PeerPool:
        """Itself."""
        del where, handle
        return self

    def copy(self, sources: Slots, targets: Slots) -> CopyEvent:
        """Copy nothing."""
        del sources, targets
        return Passed()
