"""The execution of plans of moves between tiers, concurrent with model steps.

    device <-> host    one batch of copies for each direction of a plan, one event after it
    device <-> disk    through staging buffers, see `disk_route`
    host    -> disk    written from where the block lies

Moves within the device are not made here, but by `mover`, on the stream of the step that needs
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from storage.copies import CopyDirection, CopyEvent, Copying, CopyStream, copies_for
from storage.device_pool import DevicePool
from storage.disk.tier import DiskTier
from storage.disk_route import DiskRoute
from storage.errors import CopyFailed, UnknownSlot, UnsupportedMove
from storage.host_pool import HostPool
from storage.move import Completed, Move, Plan, Tier
from storage.runs import Slots, runs_of

# Copies up come first, because requests wait for them.
_DIRECTIONS = {
    (Tier.HOST, Tier.DEVICE): CopyDirection.UP,
    (Tier.DEVICE, Tier.HOST): CopyDirection.DOWN,
}
_ROUTES = {*_DIRECTIONS, (Tier.DEVICE, Tier.DISK), (Tier.HOST, Tier.DISK), (Tier.DISK, Tier.DEVICE)}


@dataclass(frozen=True, slots=True, eq=False)
class _Direction:
    """The moves of a plan from one tier to another."""

    ends: tuple[Tier, Tier]
    moves: tuple[Move, ...]
    source_slots: Slots
    target_slots: Slots


@dataclass(slots=True, eq=False)
class _CopyBatch:
    moves: tuple[Move, ...]
    copying: Copying
    is_released: bool = False


class TierMover:
    """The mover of blocks between tiers.

    Concurrency: one owner thread. `start` and `poll` never wait for the device or the disk. Until
    the end of a move has been reported by `poll`, nothing else may use its slots; from then on they
    may be used by whatever is launched next, on any stream. Steps may read the targets of moves
    that are released early: those launched after the report wait for what is missing themselves.
    """

    def __init__(
        self,
        device: DevicePool,
        host: HostPool | None = None,
        disk: DiskTier | None = None,
        copies: CopyStream | None = None,
    ) -> None:
        """Copy to and from the device with `copies`; None: with `copies_for` the device."""
        self._device = block_bytes_of(device)
        self._host = None if host is None else host.tensor
        self._disk = disk
        self._copies = copies or copies_for(device.tensor.device, device.late)
        self._slots = {Tier.DEVICE: device.num_blocks}
        if host is not None:
            self._slots[Tier.HOST] = host.num_blocks
        if disk is not None:
            self._slots[Tier.DISK] = disk.num_blocks
        self._route = None if disk is None else DiskRoute(self._device, disk, self._copies)
        self._batches: list[_CopyBatch] = []
        self._ended = Completed()
        self.pending = 0  # moves that have been started and not reported

    def start(self, plan: Plan) -> None:
        """Start all moves of `plan`, or none: raises UnsupportedMove or UnknownSlot."""
        flows = _flows(plan.moves)
        for flow in flows.values():
            self._check(flow, plan)
        if plan.erase and self._disk is not None:
            self._disk.erase(plan.erase)
        if not plan.moves:
            return
        self.pending += len(plan.moves)
        after = self._copies.record_event()
        for ends, direction in _DIRECTIONS.items():
            if ends in flows:
                self._copy(flows[ends], direction, after)
        if self._route is not None:
            moves = [
                move for flow in flows.values() if Tier.DISK in flow.ends for move in flow.moves
            ]
            self._route.start(moves, plan.records, after)
            self._route.launch(self._ended)

    def poll(self) -> Completed:
        """Return the moves that ended or were released early since the last call."""
        going = []
        for batch in self._batches:
            if batch.copying.query():
                self._ended.add_copied(batch.moves, batch.copying.seconds)
                continue
            going.append(batch)
            if not batch.is_released and batch.copying.release_early():
                batch.is_released = True
                self._ended.released += batch.moves
        self._batches = going
        if self._route is not None:
            self._route.advance(self._ended)
        completed, self._ended = self._ended, Completed()
        self.pending -= len(completed.done) + len(completed.failed) + len(completed.lost)
        return completed

    def close(self) -> None:
        """Wait for copies under way and drop the other moves. The pools and the disk stay open."""
        for batch in self._batches:
            batch.copying.synchronize()
        self._batches = []
        if self._route is not None:
            self._route.close()
        self.pending = 0

    def _copy(self, flow: _Direction, direction: CopyDirection, after: CopyEvent) -> None:
        if self._host is None:
            return
        down = direction is CopyDirection.DOWN
        target, source = (self._host, self._device) if down else (self._device, self._host)
        runs = runs_of(target, source, flow.target_slots, flow.source_slots)
        try:
            copying = self._copies.copy(direction, runs, after)
        except CopyFailed:
            self._ended.failed += flow.moves
        else:
            self._batches.append(_CopyBatch(flow.moves, copying))

    def _check(self, flow: _Direction, plan: Plan) -> None:
        source, target = flow.ends
        known = source in self._slots and target in self._slots
        if not known or flow.ends not in _ROUTES:
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
    """View the pool's blocks as (num_blocks, block_bytes) uint8."""
    return pool.tensor.view(pool.num_blocks, -1).view(torch.uint8)


def _flows(moves: Sequence[Move]) -> dict[tuple[Tier, Tier], _Direction]:
    """Group the moves by source and target tier, each group in the given order."""
    groups: dict[tuple[Tier, Tier], list[Move]] = {}
    for move in moves:
        groups.setdefault((move.source_tier, move.target_tier), []).append(move)
    return {
        ends: _Direction(
            ends,
            tuple(group),
            np.array([move.source for move in group], np.int64),
            np.array([move.target for move in group], np.int64),
        )
        for ends, group in groups.items()
    }
