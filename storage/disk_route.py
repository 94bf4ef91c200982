"""Moves of blocks to and from the disk, a block at a time through staging buffers.

    device -> disk    wait for a buffer | copy down | write | the buffer is free
    host   -> disk                                    write
    disk   -> device  wait for a buffer | read | copy up | the buffer is free

A recurrent state is moved block by block like KV, and its move ends with the last block. The move
is lost if any block is lost. Otherwise it fails if any block fails.

Reads come first, since requests wait for them. Writes take at most half of the buffers. When the
disk does not answer, moves that wait for a buffer fail at once. Requests compute their prefixes
sooner than a stalled disk answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from storage.copies import CopyDirection, CopyEvent, CopyStream
from storage.disk.tier import DiskTier
from storage.disk.wire import DiskOutcome, Segment
from storage.errors import CopyFailed
from storage.move import BlockRecord, Completed, Move, StateSlots, Tier
from storage.runs import Runs, Slots, runs_of


@dataclass(slots=True, eq=False)
class _OpenMove:
    """A move of one or more blocks, of which `left` have not arrived or failed yet."""

    move: Move
    left: int
    outcome: DiskOutcome = DiskOutcome.DONE


@dataclass(slots=True, eq=False)
class _Passage:
    of: _OpenMove
    disk_slot: int
    place: int  # slot of the block on the device or in the host
    record: BlockRecord
    after: CopyEvent  # event after the steps that may use the device slot
    turn: int  # serial number of the `start` call that recorded `after`
    buffer: int | None = None


@dataclass(frozen=True, slots=True)
class _DiskBatch:
    passages: list[_Passage]
    event: CopyEvent


class DiskRoute:
    """The moves to and from one disk. Used by one thread only."""

    def __init__(
        self,
        device: Tensor,
        device_states: Tensor,
        disk: DiskTier,
        copies: CopyStream,
        states: StateSlots | None,
    ) -> None:
        """Move blocks to and from `device`, the device pool as (num_blocks, block_bytes) uint8.

        Recurrent states are moved to and from `device_states`, the state pool viewed as blocks.
        """
        self._memories = {False: device, True: device_states}
        self._states = states
        self._disk = disk
        self._buffers = disk.buffers
        self._copies = copies
        self._reads: deque[_Passage] = deque()
        self._writes: deque[_Passage] = deque()
        self._asked: dict[int, _Passage] = {}
        self._batches: list[_DiskBatch] = []
        self._turn = 0

    def start(
        self, moves: Iterable[Move], records: Mapping[Move, BlockRecord], after: CopyEvent
    ) -> None:
        """Queue `moves`, each of which has a record, until `launch` begins them."""
        self._turn += 1
        for move in moves:
            for passage in self._passages(move, records[move], after):
                if move.source_tier is Tier.DISK:
                    self._reads.append(passage)
                elif move.source_tier is Tier.DEVICE:
                    self._writes.append(passage)
                else:
                    self._write(passage, Segment.HOST, passage.place)

    def _passages(self, move: Move, record: BlockRecord, after: CopyEvent) -> list[_Passage]:
        sources: Iterable[int] = (move.source,)
        targets: Iterable[int] = (move.target,)
        records = [record]
        if move.is_state and self._states is not None:
            sources = self._states.of(move.source_tier, move.source)
            targets = self._states.of(move.target_tier, move.target)
            parts = range(self._states.blocks)
            records = [replace(record, state_part=part) for part in parts]
        of, up = _OpenMove(move, len(records)), move.source_tier is Tier.DISK
        return [
            _Passage(of, *((source, target) if up else (target, source)), one, after, self._turn)
            for source, target, one in zip(sources, targets, records, strict=True)
        ]

    def launch(self, ended: Completed) -> None:
        """Start queued moves while buffers are free. If the disk hangs, fail all queued moves."""
        if not self._disk.is_answering:
            for passage in (*self._reads, *self._writes):
                self._end(passage, DiskOutcome.FAILED, ended)
            self._reads.clear()
            self._writes.clear()
        while self._reads and (buffer := self._buffers.take()) is not None:
            passage = self._reads.popleft()
            passage.buffer = buffer
            ticket = self._disk.read(passage.disk_slot, passage.record, buffer)
            self._asked[ticket] = passage
        self._launch_down(ended)

    def advance(self, ended: Completed) -> None:
        """Advance every move that can advance without waiting, and report ended moves."""
        self._take_copied(ended)
        arrived = []
        for answer in self._disk.poll():
            passage = self._asked.pop(answer.ticket, None)
            if passage is None:
                continue  # the move was dropped by `close`
            if answer.outcome is DiskOutcome.DONE and passage.of.move.source_tier is Tier.DISK:
                arrived.append(passage)
            else:
                self._end(passage, answer.outcome, ended)
        self._bring(arrived, ended)
        self.launch(ended)

    def close(self) -> None:
        """Wait for the copies under way and drop the remaining moves."""
        for batch in self._batches:
            batch.event.synchronize()
        self._batches, self._asked = [], {}
        self._reads.clear()
        self._writes.clear()

    def _launch_down(self, ended: Completed) -> None:
        going = []
        spare = self._buffers.pool.num_blocks // 2
        while self._writes and self._buffers.num_free > spare:
            passage = self._writes.popleft()
            passage.buffer = self._buffers.take()
            going.append(passage)
        self._copy(CopyDirection.DOWN, going, ended)

    def _bring(self, arrived: list[_Passage], ended: Completed) -> None:
        self._copy(CopyDirection.UP, arrived, ended)

    def _copy(self, direction: CopyDirection, passages: list[_Passage], ended: Completed) -> None:
        buffers = self._buffers.pool.tensor
        for of_states, device in self._memories.items():
            some = [passage for passage in passages if passage.of.move.is_state is of_states]
            if some:
                ends = (device, buffers, _places_of(some), _buffers_of(some))
                if direction is CopyDirection.DOWN:
                    ends = (buffers, device, ends[3], ends[2])
                self._copy_runs(direction, some, runs_of(*ends), ended)

    def _copy_runs(
        self, direction: CopyDirection, passages: list[_Passage], runs: Runs, ended: Completed
    ) -> None:
        after = max(passages, key=lambda passage: passage.turn).after
        try:
            event = self._copies.copy(direction, runs, after)
        except CopyFailed:
            for passage in passages:
                self._end(passage, DiskOutcome.FAILED, ended)
        else:
            self._batches.append(_DiskBatch(passages, event))

    def _take_copied(self, ended: Completed) -> None:
        """Write blocks that have been copied into buffers, and end moves copied out of buffers."""
        going = []
        for batch in self._batches:
            if not batch.event.query():
                going.append(batch)
                continue
            for passage in batch.passages:
                if passage.of.move.target_tier is Tier.DISK and passage.buffer is not None:
                    self._write(passage, Segment.STAGING, passage.buffer)
                else:
                    self._end(passage, DiskOutcome.DONE, ended)
        self._batches = going

    def _write(self, passage: _Passage, segment: Segment, place: int) -> None:
        ticket = self._disk.write(passage.disk_slot, passage.record, segment, place)
        self._asked[ticket] = passage

    def _end(self, passage: _Passage, outcome: DiskOutcome, ended: Completed) -> None:
        if passage.buffer is not None:
            self._buffers.give_back(passage.buffer)
        by_outcome = {
            DiskOutcome.DONE: ended.done,
            DiskOutcome.FAILED: ended.failed,
            DiskOutcome.LOST: ended.lost,
        }
        of, worse = passage.of, list(by_outcome)
        of.left -= 1
        of.outcome = max(of.outcome, outcome, key=worse.index)
        if not of.left:
            by_outcome[of.outcome].append(of.move)


def _places_of(passages: list[_Passage]) -> Slots:
    return np.array([passage.place for passage in passages], np.int64)


def _buffers_of(passages: list[_Passage]) -> Slots:
    buffers = [passage.buffer for passage in passages if passage.buffer is not None]
    return np.array(buffers, np.int64)
