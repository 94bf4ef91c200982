"""Moves to and from the disk, a block at a time through staging buffers.

    device -> disk    wait for a buffer | copy down | write | the buffer is free
    host   -> disk                                    write
    disk   -> device  wait for a buffer | read | copy up | the buffer is free
    disk   -> host    wait for a buffer | read | copy over

Reads come first, since a request waits for them. Blocks that go down take at most half of the
buffers. When the disk does not answer, moves that wait for a buffer fail at once: a request is
better off computing its prefix than waiting in a queue that does not move.

Knows: buffers, and how far each move is. Does not know: what is in a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from storage.copies import Copies, Direction, Event
from storage.disk.tier import DiskTier
from storage.disk.wire import Outcome, Segment
from storage.errors import CopyFailed
from storage.move import Move, Record, Tier
from storage.runs import Runs, Slots, runs_of
from storage.settled import Ends


@dataclass(frozen=True, slots=True)
class TierTensors:
    """The blocks of the tiers in memory, (num_blocks, block_bytes) uint8 each."""

    device: Tensor
    host: Tensor | None


@dataclass(slots=True, eq=False)
class _Passage:
    """One move on its way."""

    move: Move
    record: Record
    mark: Event  # behind the steps that may use the device's slot
    turn: int  # number of the `start` that made the mark: a later one's is later on the stream
    buffer: int | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    passages: list[_Passage]
    event: Event


class DiskRoute:
    """The moves to and from one disk. One owner thread."""

    def __init__(self, tensors: TierTensors, disk: DiskTier, copies: Copies) -> None:
        self._tensors = tensors
        self._disk = disk
        self._buffers = disk.buffers
        self._copies = copies
        self._reads: deque[_Passage] = deque()
        self._writes: deque[_Passage] = deque()
        self._asked: dict[int, _Passage] = {}
        self._batches: list[_Batch] = []
        self._turn = 0

    def start(self, moves: Iterable[Move], records: Mapping[Move, Record], mark: Event) -> None:
        """Queue `moves`, every one of which has a record; `launch` begins them."""
        self._turn += 1
        for move in moves:
            passage = _Passage(move, records[move], mark, self._turn)
            if move.source_tier is Tier.DISK:
                self._reads.append(passage)
            elif move.source_tier is Tier.DEVICE:
                self._writes.append(passage)
            else:
                self._write(passage, Segment.HOST, move.source)

    def launch(self, ends: Ends) -> None:
        """Begin the moves for which there is a buffer; fail all queued ones if the disk hangs."""
        if not self._disk.is_answering:
            for passage in (*self._reads, *self._writes):
                self._end(passage, Outcome.FAILED, ends)
            self._reads.clear()
            self._writes.clear()
        while self._reads and (buffer := self._buffers.take()) is not None:
            passage = self._reads.popleft()
            passage.buffer = buffer
            ticket = self._disk.read(passage.move.source, passage.record, buffer)
            self._asked[ticket] = passage
        self._launch_down(ends)

    def advance(self, ends: Ends) -> None:
        """Take every move as far as it goes without waiting; report those that have ended."""
        self._take_copied(ends)
        arrived = []
        for answer in self._disk.poll():
            passage = self._asked.pop(answer.ticket, None)
            if passage is None:
                continue  # dropped by `close`
            if answer.outcome is Outcome.DONE and passage.move.source_tier is Tier.DISK:
                arrived.append(passage)
            else:
                self._end(passage, answer.outcome, ends)
        self._bring(arrived, ends)
        self.launch(ends)

    def close(self) -> None:
        """Wait for the copies under way; the rest is dropped."""
        for batch in self._batches:
            batch.event.synchronize()
        self._batches, self._asked = [], {}
        self._reads.clear()
        self._writes.clear()

    def _launch_down(self, ends: Ends) -> None:
        going = []
        spare = self._buffers.pool.num_blocks // 2
        while self._writes and self._buffers.num_free > spare:
            passage = self._writes.popleft()
            passage.buffer = self._buffers.take()
            going.append(passage)
        slots = np.array([passage.move.source for passage in going], np.int64)
        runs = runs_of(self._buffers.pool.tensor, self._tensors.device, _buffers_of(going), slots)
        self._copy(Direction.DOWN, going, runs, ends)

    def _bring(self, arrived: list[_Passage], ends: Ends) -> None:
        """Copy blocks that have been read from disk from their buffers to their targets."""
        up = [passage for passage in arrived if passage.move.target_tier is Tier.DEVICE]
        slots = np.array([passage.move.target for passage in up], np.int64)
        runs = runs_of(self._tensors.device, self._buffers.pool.tensor, slots, _buffers_of(up))
        self._copy(Direction.UP, up, runs, ends)
        for passage in arrived:
            if passage.move.target_tier is Tier.HOST and self._tensors.host is not None:
                staged = self._buffers.pool.tensor[_buffer_of(passage)]
                self._tensors.host[passage.move.target].copy_(staged)
                self._end(passage, Outcome.DONE, ends)

    def _copy(self, direction: Direction, passages: list[_Passage], runs: Runs, ends: Ends) -> None:
        if not passages:
            return
        mark = max(passages, key=lambda passage: passage.turn).mark
        try:
            event = self._copies.copy(direction, runs, mark)
        except CopyFailed:
            for passage in passages:
                self._end(passage, Outcome.FAILED, ends)
        else:
            self._batches.append(_Batch(passages, event))

    def _take_copied(self, ends: Ends) -> None:
        """Write to disk what has been copied to buffers; end moves copied from buffers."""
        going = []
        for batch in self._batches:
            if not batch.event.query():
                going.append(batch)
                continue
            for passage in batch.passages:
                if passage.move.target_tier is Tier.DISK and passage.buffer is not None:
                    self._write(passage, Segment.STAGING, passage.buffer)
                else:
                    self._end(passage, Outcome.DONE, ends)
        self._batches = going

    def _write(self, passage: _Passage, segment: Segment, place: int) -> None:
        ticket = self._disk.write(passage.move.target, passage.record, segment, place)
        self._asked[ticket] = passage

    def _end(self, passage: _Passage, outcome: Outcome, ends: Ends) -> None:
        if passage.buffer is not None:
            self._buffers.give_back(passage.buffer)
        by_outcome = {Outcome.DONE: ends.done, Outcome.FAILED: ends.failed, Outcome.LOST: ends.lost}
        by_outcome[outcome].append(passage.move)


def _buffers_of(passages: list[_Passage]) -> Slots:
    return np.array([_buffer_of(passage) for passage in passages], np.int64)


def _buffer_of(passage: _Passage) -> int:
    assert passage.buffer is not None
    return passage.buffer
