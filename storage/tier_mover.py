"""Executes plans of moves between tiers, beside the steps.

    device <-> host    one batch of copies for each direction of a plan, one event behind it
    device <-> disk    through staging buffers, see `disk_route`
    host    -> disk    written from where the block lies
    disk    -> host    through staging buffers

Moves within the device are not made here, but by `mover`, on the stream of the step that needs
them.

Knows: the tiers' memory, and when a move has ended. Does not know: why a block moves, whose it
is, or what follows from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from storage.copies import Copies, Copying, Direction, Event, copies_for
from storage.device_pool import DevicePool
from storage.disk.tier import DiskTier
from storage.disk_route import DiskRoute, TierTensors
from storage.errors import CopyFailed, UnknownSlot, UnsupportedMove
from storage.host_pool import HostPool
from storage.move import Move, Plan, Tier
from storage.runs import Slots, runs_of
from storage.settled import Ends, Settled

# In this order: a request waits for copies up, while copies down have time.
_DIRECTIONS = {
    (Tier.HOST, Tier.DEVICE): Direction.UP,
    (Tier.DEVICE, Tier.HOST): Direction.DOWN,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """The moves of a plan from one tier to another."""

    ends: tuple[Tier, Tier]
    moves: tuple[Move, ...]
    source_slots: Slots
    target_slots: Slots


@dataclass(slots=True, eq=False)
class _Batch:
    moves: tuple[Move, ...]
    copying: Copying
    is_promised: bool = False


class TierMover:
    """Moves blocks between tiers.

    Concurrency: one owner thread. `start` and `poll` never wait for the device or the disk.
    Until the end of a move has been reported by `poll`, nothing else may use its slots; from then
    on they may be used by whatever is launched next, on any stream. Steps may read the targets of
    moves that are promised: those launched after the report wait for what is missing themselves.
    """

    def __init__(
        self,
        device: DevicePool,
        host: HostPool | None = None,
        disk: DiskTier | None = None,
        copies: Copies | None = None,
    ) -> None:
        """`copies`: how to copy to and from the device; None: as `copies_for` says."""
        self._device = block_bytes_of(device)
        self._host = None if host is None else host.tensor
        self._disk = disk
        self._copies = copies or copies_for(device.tensor.device, device.late)
        self._slots = {Tier.DEVICE: device.num_blocks}
        if host is not None:
            self._slots[Tier.HOST] = host.num_blocks
        if disk is not None:
            self._slots[Tier.DISK] = disk.num_blocks
        tensors = TierTensors(self._device, self._host)
        self._route = None if disk is None else DiskRoute(tensors, disk, self._copies)
        self._batches: list[_Batch] = []
        self._ends = Ends()
        self._pending = 0

    @property
    def pending(self) -> int:
        """Moves that have been started and not been reported."""
        return self._pending

    def start(self, plan: Plan) -> None:
        """Begin all moves of `plan`, or none: raises UnsupportedMove or UnknownSlot."""
        flows = _flows(plan.moves)
        for flow in flows.values():
            self._check(flow, plan)
        if plan.erase and self._disk is not None:
            self._disk.erase(plan.erase)
        if not plan.moves:
            return
        self._pending += len(plan.moves)
        mark = self._copies.mark()
        for ends, direction in _DIRECTIONS.items():
            if ends in flows:
                self._copy(flows[ends], direction, mark)
        if self._route is not None:
            moves = [
                move for flow in flows.values() if Tier.DISK in flow.ends for move in flow.moves
            ]
            self._route.start(moves, plan.records, mark)
            self._route.launch(self._ends)

    def poll(self) -> Settled:
        """Return the moves that have ended since the last call, and those promised."""
        going = []
        for batch in self._batches:
            if batch.copying.query():
                self._ends.add_copied(batch.moves, batch.copying.seconds)
                continue
            going.append(batch)
            if not batch.is_promised and batch.copying.promise():
                batch.is_promised = True
                self._ends.promised += batch.moves
        self._batches = going
        if self._route is not None:
            self._route.advance(self._ends)
        settled = self._ends.take()
        self._pending -= len(settled.done) + len(settled.failed) + len(settled.lost)
        return settled

    def close(self) -> None:
        """Wait for the copies under way and drop the rest. The pools and the disk stay open."""
        for batch in self._batches:
            batch.copying.synchronize()
        self._batches = []
        if self._route is not None:
            self._route.close()
        self._pending = 0

    def _copy(self, flow: _Flow, direction: Direction, mark: Event) -> None:
        if self._host is None:
            return
        down = direction is Direction.DOWN
        target, source = (self._host, self._device) if down else (self._device, self._host)
        runs = runs_of(target, source, flow.target_slots, flow.source_slots)
        try:
            copying = self._copies.copy(direction, runs, mark)
        except CopyFailed:
            self._ends.add_failed(flow.moves)
        else:
            self._batches.append(_Batch(flow.moves, copying))

    def _check(self, flow: _Flow, plan: Plan) -> None:
        source, target = flow.ends
        known = source in self._slots and target in self._slots
        if not known or source is target:
            raise UnsupportedMove(f"cannot copy from {source.value} to {target.value} here")
        if Tier.DISK in flow.ends:
            for move in flow.moves:
                if move not in plan.records:
                    raise UnsupportedMove(f"{move} has no record")
        for tier, slots in ((source, flow.source_slots), (target, flow.target_slots)):
            outside = slots[(slots < 0) | (slots >= self._slots[tier])]
            if len(outside):
                raise UnknownSlot(
                    f"slot {outside[0]} of {tier.value} is not in 0..{self._slots[tier] - 1}"
                )


def block_bytes_of(pool: DevicePool) -> Tensor:
    """The pool's blocks as (num_blocks, block_bytes) uint8: a view."""
    return pool.tensor.view(pool.num_blocks, -1).view(torch.uint8)


def _flows(moves: Sequence[Move]) -> dict[tuple[Tier, Tier], _Flow]:
    """The moves by where they lead from and to, each in the order given."""
    groups: dict[tuple[Tier, Tier], list[Move]] = {}
    for move in moves:
        groups.setdefault((move.source_tier, move.target_tier), []).append(move)
    return {
        ends: _Flow(
            ends,
            tuple(group),
            np.array([move.source for move in group], np.int64),
            np.array([move.target for move in group], np.int64),
        )
        for ends, group in groups.items()
    }
