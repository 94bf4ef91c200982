"""The loop of a rank other than 0, which executes rank 0's messages and reports results.

    steps    step n | copies | step n+1 | ...      each is launched without waiting for the GPU
    polls    copies that have ended are reported   between messages

The loop ends after `Close`, or when rank 0 is gone. An error ends the process, which ends the
engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from engine.adapters.rank_adapters import RankAdapters
from engine.copies import COPY_WAIT_S
from engine.exchange.ranks_units import RankUnits
from engine.ranks.messages import (
    COMMANDS,
    ENCODER,
    MOST_FLUSHES,
    MOST_MOVES,
    MOST_SCANNED,
    Close,
    CopyBlocks,
    DescribeUnits,
    DiskReport,
    FlushesDone,
    ForgetAdapter,
    ForgetOwner,
    HoldAdapter,
    Launch,
    LaunchForward,
    ListFlushes,
    MovesEnded,
    NoteFlushes,
    OfAdapters,
    OnDisk,
    PlaceAdapter,
    RankMessage,
    ReadUnits,
    SampleRows,
    ScanDisk,
    Scanned,
    SkipRows,
    Work,
    WriteUnits,
)
from engine.ranks.ring import RingReader
from engine.ranks.tiers import digest_of
from engine.step import Forward, Runner
from engine.tier_interfaces import BlockMover, Disk
from storage.disk.wire import Channel
from storage.move import BlockRecord, Move
from storage.waiting import wait_for_any

LOOK_S = 0.5  # seconds between checks whether an idle disk's process has died


@dataclass(frozen=True, slots=True)
class RankParts:
    """The objects that make up a started rank."""

    runner: Runner
    mover: BlockMover
    disk: Disk | None
    units: RankUnits
    adapters: RankAdapters | None = None


class Follower:
    """The loop of a rank other than 0. Used by one thread only."""

    def __init__(self, parts: RankParts, ring: RingReader, channel: Channel) -> None:
        self._parts = parts
        self._ring = ring
        self._channel = channel
        # Launched step for which rank 0 has not ordered the sampling yet.
        self._forward: Forward | None = None
        self._numbers: dict[Move, int] = {}
        self._num_started = 0
        self._reported: DiskReport | None = None
        self._told = 0  # number of commands to forget an owner since the start

    def run(self) -> None:
        """Execute rank 0's messages until `Close`. Raises WireBroken if rank 0 dies earlier."""
        while True:
            content = self._ring.read()
            if content is None:
                self._look_after_copies()
                self._report_adapters()
                self._wait()
                continue
            command = COMMANDS.decode(content)
            if isinstance(command, Close):
                return
            self._do(command)

    def _do(self, command: Work) -> None:
        match command:
            case Launch(step):
                self._parts.runner.launch(step)
            case LaunchForward(step):
                self._forward = self._parts.runner.launch_forward(step)
            case SampleRows() | SkipRows():
                self._end_step(command)
            case CopyBlocks():
                self._copy(command)
            case ForgetOwner() | NoteFlushes() | ScanDisk() | ListFlushes():
                self._do_on_disk(command, self._parts.disk)
            case HoldAdapter() | PlaceAdapter() | ForgetAdapter():
                self._do_with_adapters(command)
            case DescribeUnits() | ReadUnits() | WriteUnits():
                for report in self._parts.units.do(command):
                    self._send(report)

    def _do_with_adapters(self, command: OfAdapters) -> None:
        assert self._parts.adapters is not None, "rank 0 has the same settings"
        self._parts.adapters.do(command)

    def _end_step(self, command: SampleRows | SkipRows) -> None:
        forward, self._forward = self._forward, None
        if forward is not None:
            _ = forward.skip() if isinstance(command, SkipRows) else forward.sample(())

    def _do_on_disk(self, command: OnDisk, disk: Disk | None) -> None:
        match command:
            case ForgetOwner(owner):
                self._told += 1
                if disk is not None:
                    disk.forget_owner(owner)
            case NoteFlushes(flushes):
                if disk is not None:
                    disk.note_flushes(flushes)
            case ScanDisk():
                self._scan(disk)
            case ListFlushes():
                self._list_flushes(disk)

    def _copy(self, command: CopyBlocks) -> None:
        for number, move in enumerate(command.moves, self._num_started):
            self._numbers[move] = number
        self._num_started += len(command.moves)
        self._parts.mover.start(command.plan())

    def _look_after_copies(self) -> None:
        if self._parts.disk is None and not self._parts.mover.pending:
            return
        ended = self._parts.mover.poll()
        reports = [
            iter([self._numbers.pop(move) for move in moves])
            for moves in (ended.done, ended.failed, ended.lost)
        ]
        while any(parts := [list(islice(numbers, MOST_MOVES)) for numbers in reports]):
            self._send(MovesEnded(*parts))
        self._report_disk()

    def _report_adapters(self) -> None:
        if self._parts.adapters is not None:
            for report in self._parts.adapters.reports():
                self._send(report)

    def _report_disk(self) -> None:
        disk = self._parts.disk
        if disk is None:
            return
        report = DiskReport(disk.state, disk.generation, disk.stats.forgetting, self._told)
        if report != self._reported:
            self._reported = report
            self._send(report)

    def _scan(self, disk: Disk | None) -> None:
        records = iter(()) if disk is None else iter(disk.scan())
        for part in _parts_of(records):
            self._send(Scanned(*part, False))
        self._send(Scanned([], b"", True))

    def _list_flushes(self, disk: Disk | None) -> None:
        flushes = iter(() if disk is None else disk.done_flushes())
        while part := list(islice(flushes, MOST_FLUSHES)):
            self._send(FlushesDone(part, False))
        self._send(FlushesDone([], True))

    def _send(self, report: RankMessage) -> None:
        self._channel.send(ENCODER.encode(report))

    def _wait(self) -> None:
        ring, channel = self._ring.fileno(), self._channel.socket.fileno()
        readable = wait_for_any([ring, channel], self._patience())
        # Rank 0 sends nothing here after the start, so the channel was closed.
        if channel in readable:
            self._channel.receive()

    def _patience(self) -> float | None:
        adapters = self._parts.adapters
        if self._parts.mover.pending or (adapters is not None and adapters.pending):
            return COPY_WAIT_S
        return None if self._parts.disk is None else LOOK_S


def _parts_of(records: Iterator[tuple[int, BlockRecord]]) -> Iterator[tuple[list[int], bytes]]:
    while part := list(islice(records, MOST_SCANNED)):
        yield [slot for slot, _ in part], b"".join(digest_of(record) for _, record in part)
