"""The execution of planned moves between tiers, at the same time as model steps.

    device <-> host    one batch of copies for each direction of a plan, one event after it
    device <-> disk    through staging buffers, see `disk_route`
    host    -> disk    written directly from host memory

A recurrent state is moved as the blocks that it takes (`StateSlots`). The move of a state ends with
its last block, and is never released early.

Moves within the device are made by `device_pool.Mover`, on the stream of the step that needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from storage.copies import CopyDirection, CopyEvent, Copying, CopyStream, copies_for
from storage.disk.tier import DiskTier
from storage.disk_route import DiskRoute
from storage.errors import CopyFailed, UnknownSlot, UnsupportedMove
from storage.move import Completed, Move, Plan, StateSlots, Tier
from storage.pools.device_pool import DevicePool
from storage.pools.host_digests import HostDigests
from storage.pools.host_pool import HostPool
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool
from storage.runs import Slots, runs_of

# Copies up come first, because requests wait for them.
_DIRECTIONS = {
    (Tier.HOST, Tier.DEVICE): CopyDirection.UP,
    (Tier.DEVICE, Tier.HOST): CopyDirection.DOWN,
}
_ROUTES = {*_DIRECTIONS, (Tier.DEVICE, Tier.DISK), (Tier.HOST, Tier.DISK), (Tier.DISK, Tier.DEVICE)}


@dataclass(frozen=True, slots=True, eq=False)
class _Direction:
    """The moves of blocks, or of recurrent states, between two tiers of a plan.

    The slots are block slots. A recurrent state has a slot for each block that it takes.
    """

    ends: tuple[Tier, Tier]
    of_states: bool
    moves: tuple[Move, ...]
    source_slots: Slots
    target_slots: Slots


@dataclass(slots=True, eq=False)
class _CopyBatch:
    moves: tuple[Move, ...]
    num_blocks: int
    copying: Copying
    come_down: Slots | None
    is_released: bool = False


class TierMover:
    """The mover of blocks between tiers.

    Used by one thread only. `start` and `poll` never wait for the device or the disk. A move's
    slots must not be used until `poll` has reported the move's end. After that, launches on any
    stream may use them. Once `poll` has reported a move as released early, new steps may read the
    move's target. These steps wait for the missing layers themselves.
    """

    def __init__(
        self,
        device: DevicePool,
        host: HostPool | None = None,
        disk: DiskTier | None = None,
        copies: CopyStream | None = None,
        states: tuple[StatePool | WindowPool, StateSlots] | None = None,
    ) -> None:
        """Copy to and from the device with `copies`, by default those of `copies_for`.

        `states` is the pool of recurrent states or rings, with their slots in lower tiers.
        """
        self._device = block_bytes_of(device)
        self._host = None if host is None else host.tensor
        self._digests = None if host is None else HostDigests(host.tensor)
        self._disk = disk
        self._copies = copies or copies_for(device.tensor.device, device.late)
        self._slots = {Tier.DEVICE: device.num_blocks}
        if host is not None:
            self._slots[Tier.HOST] = host.num_blocks
        if disk is not None:
            self._slots[Tier.DISK] = disk.num_blocks
        self._state_slots: StateSlots | None = None
        self._device_states = self._device[:0]
        if states is not None:
            self._device_states, self._state_slots = states[0].blocks, states[1]
        # All layers of a recurrent state are needed at once.
        self._state_copies = copies or copies_for(device.tensor.device)
        self._route = None
        if disk is not None:
            memories = self._device, self._device_states
            self._route = DiskRoute(*memories, disk, self._copies, self._state_slots)
        self._batches: list[_CopyBatch] = []
        self._ended = Completed()
        self.pending = 0  # moves that have been started and not reported

    def start(self, plan: Plan) -> None:
        """Start all moves of `plan`.

        Raises UnsupportedMove or UnknownSlot before any move starts. If a block has been damaged in
        host memory, its move is lost.
        """
        flows = _flows(plan.moves, self._state_slots)
        for flow in flows:
            self._check(flow, plan)
        if plan.erase and self._disk is not None:
            self._disk.erase(plan.erase)
        if not plan.moves:
            return
        self.pending += len(plan.moves)
        flows = [self._sound(flow) for flow in flows]
        after = self._copies.record_event()
        for ends, direction in _DIRECTIONS.items():
            for flow in flows:
                if flow.ends == ends and flow.moves:
                    self._copy(flow, direction, after)
        if self._route is not None:
            moves = [move for flow in flows if Tier.DISK in flow.ends for move in flow.moves]
            self._route.start(moves, plan.records, after)
            self._route.launch(self._ended)

    def poll(self) -> Completed:
        """Return the moves that ended or were released early since the last call."""
        going = []
        for batch in self._batches:
            if batch.copying.query():
                if self._digests is not None and batch.come_down is not None:
                    self._digests.arrived(batch.come_down.tolist())
                self._ended.add_copied(batch.moves, batch.num_blocks, batch.copying.seconds)
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
        down, device, copies = direction is CopyDirection.DOWN, self._device, self._copies
        if flow.of_states:
            device, copies = self._device_states, self._state_copies
        target, source = (self._host, device) if down else (device, self._host)
        runs = runs_of(target, source, flow.target_slots, flow.source_slots)
        if down and self._digests is not None:
            self._digests.forget(flow.target_slots.tolist())
        try:
            copying = copies.copy(direction, runs, after)
        except CopyFailed:
            self._ended.failed += flow.moves
        else:
            slots = flow.target_slots if down else None
            self._batches.append(_CopyBatch(flow.moves, len(flow.source_slots), copying, slots))

    def _sound(self, flow: _Direction) -> _Direction:
        """Return the moves of `flow` with undamaged blocks, and count the other moves as lost."""
        if self._digests is None or flow.ends[0] is not Tier.HOST:
            return flow
        damaged = self._digests.damaged(flow.source_slots.tolist())
        if not damaged:
            return flow
        each = flow.source_slots.reshape(len(flow.moves), -1)
        is_sound = [damaged.isdisjoint(slots) for slots in each.tolist()]
        self._ended.lost += [move for move, ok in zip(flow.moves, is_sound, strict=True) if not ok]
        kept = np.repeat(np.array(is_sound), each.shape[1])
        return replace(
            flow,
            moves=tuple(move for move, ok in zip(flow.moves, is_sound, strict=True) if ok),
            source_slots=flow.source_slots[kept],
            target_slots=flow.target_slots[kept],
        )

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
            is_device_state = flow.of_states and tier is Tier.DEVICE
            total = len(self._device_states) if is_device_state else self._slots[tier]
            outside = slots[(slots < 0) | (slots >= total)]
            if len(outside):
                raise UnknownSlot(f"slot {outside[0]} of {tier.value} is not in 0..{total - 1}")


def block_bytes_of(pool: DevicePool) -> Tensor:
    """View the pool's blocks as (num_blocks, block_bytes) uint8."""
    return pool.tensor.view(pool.num_blocks, -1).view(torch.uint8)


def _flows(moves: Sequence[Move], states: StateSlots | None) -> list[_Direction]:
    groups: dict[tuple[Tier, Tier, bool], list[Move]] = {}
    for move in moves:
        groups.setdefault((move.source_tier, move.target_tier, move.is_state), []).append(move)
    return [
        _Direction(
            (source, target),
            of_states,
            tuple(group),
            _slots(source, [move.source for move in group], states if of_states else None),
            _slots(target, [move.target for move in group], states if of_states else None),
        )
        for (source, target, of_states), group in groups.items()
    ]


def _slots(tier: Tier, slots: list[int], states: StateSlots | None) -> Slots:
    """Return block slots. For recurrent states, these are the slots of each state's blocks."""
    if states is not None:
        slots = [block for slot in slots for block in states.of(tier, slot)]
    return np.array(slots, np.int64)
