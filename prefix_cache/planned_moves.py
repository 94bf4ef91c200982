"""The moves between tiers: planned by the cache, executed by its caller, and completed here.

The caller fetches the planned moves with `take_plan`, executes them, and reports each end to
`complete`. Used by one thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefix_cache.leases.loader import Loader
from prefix_cache.leases.state_leasing import StateLeasing
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.eviction_log import Reason
from prefix_cache.tiers.in_flight import CopyOutcome, InFlight
from prefix_cache.tiers.quotas import Quotas
from storage.move import DEVICE_TIER, DISK_TIER, Move, Plan


class PlannedMoves:
    """The moves of KV blocks and recurrent states between one cache's tiers."""

    def __init__(
        self,
        quotas: Quotas,
        capacity: Capacity,
        in_flight: InFlight,
        loader: Loader,
        states: StateLeasing,
    ) -> None:
        self._quotas = quotas
        self._capacity = capacity
        self._in_flight = in_flight
        self._loader = loader
        self._states = states

    def take_plan(self) -> Plan:
        """Return the copies to make and the disk slots to erase, planned since the last call.

        The caller reports each move to `complete` once. The plan includes copies that make room
        ahead of requests (`Tiers.ahead`).
        """
        self._quotas.keep_again()
        self._capacity.offloader.make_ahead()
        self._capacity.state_copies.copy_ahead()
        return self._in_flight.take_plan()

    def complete(
        self, done: Iterable[Move] = (), failed: Iterable[Move] = (), lost: Iterable[Move] = ()
    ) -> None:
        """Apply the outcomes of a plan's moves.

        After a `failed` move the block stays in its source tier. `lost` means that the copy to be
        read is damaged. The block and all blocks that follow it are then forgotten. Raises
        UnknownMove for a move that is not under way.
        """
        ends = ((done, CopyOutcome.DONE), (failed, CopyOutcome.FAILED), (lost, CopyOutcome.LOST))
        for moves, outcome in ends:
            for transfer in self._in_flight.end(moves, outcome):
                if transfer.of_state:
                    self._states.complete(transfer)
                    continue
                completing = self._loader if transfer.target is DEVICE_TIER else self._capacity
                self._capacity.removals.prune_all(completing.complete(transfer), Reason.LOST)

    def release_early(self, moves: Sequence[Move]) -> None:
        """Let steps start before these moves have ended, because the moves can no longer fail.

        Leases that waited only for these moves become ready. The caller must still complete each
        move.
        """
        for transfer in self._in_flight.transfers_of(moves):
            if transfer.target is DEVICE_TIER and not transfer.of_state:
                self._loader.release_early(transfer)

    def forget_disk(self) -> int:
        """Forget all copies on disk, because the disk tier's file was emptied or lost.

        Blocks without another copy leave the tree with all blocks that follow them. Leased blocks
        and blocks being loaded stay with their leases. Moves to disk under way count as failed and
        must still be completed. Returns the number of blocks that left the tree.
        """
        self._in_flight.void(DISK_TIER)
        return self._capacity.removals.forget_disk()
