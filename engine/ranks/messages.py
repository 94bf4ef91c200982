"""The messages of rank 0 to the other ranks, and the reports of these ranks.

    ring      Launch, LaunchForward, SampleRows, SkipRows | CopyBlocks
              ForgetOwner, NoteFlushes, ScanDisk | HoldAdapter, PlaceAdapter, ForgetAdapter
              DescribeUnits, ReadUnits, WriteUnits | Close
    socket    Start -->   <-- Started | NotStarted, MovesEnded, DiskReport, Scanned, FlushesDone,
              AdapterHeld, UnitShape, UnitBytes

Messages in the ring are carried out in order. If a message cannot be decoded, the process that
received it ends.
"""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.ranks.ring import ReaderEnds
from engine.step import Step
from storage.disk.stats import DiskState
from storage.move import BlockRecord, Move, Plan

MOST_MOVES = 8192
MOST_SCANNED = 2048
MOST_FLUSHES = 1024
DIGEST_BYTES = 16


class RankMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The base class of all messages."""


class Start(RankMessage, frozen=True):
    """The first message on the socket: the model, the rank's number, and the meeting point.

    `rendezvous` is the path of the inherited file through which ranks find each other.
    """

    config: EngineConfig
    rank: int
    ring: ReaderEnds
    rendezvous: str


class Launch(RankMessage, frozen=True):
    """A command to compute a step."""

    step: Step


class LaunchForward(RankMessage, frozen=True):
    """A command to compute a step without its sampling. `SampleRows` or `SkipRows` follows."""

    step: Step


class SampleRows(RankMessage, frozen=True):
    """A command to sample the rows of the step that `LaunchForward` began."""


class SkipRows(RankMessage, frozen=True):
    """A command to sample nothing in the step that `LaunchForward` began.

    A draft head still computes its KV for the step.
    """


class CopyBlocks(RankMessage, frozen=True):
    """A command to carry out a plan (`storage.move.Plan`).

    `records` has a record or None for each move.
    """

    moves: tuple[Move, ...]
    records: tuple[BlockRecord | None, ...]
    erase: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan) -> CopyBlocks:
        """Convert a plan to a message."""
        records = tuple(plan.records.get(move) for move in plan.moves)
        return cls(plan.moves, records, plan.erase)

    def plan(self) -> Plan:
        """Convert this message to a plan."""
        pairs = zip(self.moves, self.records, strict=True)
        records = {move: record for move, record in pairs if record is not None}
        return Plan(self.moves, records, self.erase)


class ForgetOwner(RankMessage, frozen=True):
    """A command to make all records of an owner unreadable."""

    owner: str


class NoteFlushes(RankMessage, frozen=True):
    """A command to record flushes as done, after all earlier erasures have ended."""

    flushes: tuple[str, ...]


class ScanDisk(RankMessage, frozen=True):
    """A request to list the records on disk."""


class ListFlushes(RankMessage, frozen=True):
    """A request to list the flushes that are recorded on disk as done."""


class HoldAdapter(RankMessage, frozen=True):
    """A command to read this rank's part of an adapter into host memory.

    The adapter gets a number that is never reused.
    """

    number: int
    digest: bytes
    path: str  # the adapter's folder, relative to the folder of adapters


class PlaceAdapter(RankMessage, frozen=True):
    """A command to copy an adapter, which all ranks hold, to a slot of the device."""

    slot: int
    number: int


class ForgetAdapter(RankMessage, frozen=True):
    """A command to drop an adapter from host memory, even if it is still being read."""

    number: int


class DescribeUnits(RankMessage, frozen=True):
    """A request for the size of this rank's part of a unit (`engine.exchange.units`)."""


class ReadUnits(RankMessage, frozen=True):
    """A request to read this rank's parts of blocks, by slot, and of recurrent states, by row."""

    blocks: list[int]
    states: list[int]


class WriteUnits(RankMessage, frozen=True):
    """A command to write this rank's part of each unit, which begins at its byte in `starts`."""

    blocks: list[int]
    states: list[int]
    starts: list[int]
    payload: bytes


class Close(RankMessage, frozen=True):
    """A command to write pending data to disk, and then end."""


class Started(RankMessage, frozen=True):
    """A report: the rank is ready for steps."""


class NotStarted(RankMessage, frozen=True):
    """A report: the start failed. `is_refused` is True if the model's files are the reason."""

    text: str
    is_refused: bool


class MovesEnded(RankMessage, frozen=True):
    """A report of the numbers of the moves that have ended.

    Moves are numbered 0, 1, 2, ... across all plans.
    """

    done: list[int]
    failed: list[int]
    lost: list[int]


class DiskReport(RankMessage, frozen=True):
    """A report of the state and the counters of a rank's disk, sent after each change."""

    state: DiskState
    generation: int
    forgetting: int
    told: int = 0  # number of `ForgetOwner` messages that the rank has received


class Scanned(RankMessage, frozen=True):
    """A report of the slots that have a record, with 16 bytes each that identify the record."""

    slots: list[int]
    digests: bytes
    is_last: bool


class FlushesDone(RankMessage, frozen=True):
    """A report of the flushes that are recorded on disk as done, the oldest first."""

    flushes: list[str]
    is_last: bool


class AdapterHeld(RankMessage, frozen=True):
    """A report: an adapter is in host memory, or was refused for the reason `refused`."""

    number: int
    refused: str | None = None


class UnitShape(RankMessage, frozen=True):
    """A report of the size of this rank's part of a unit, and of the number of units of a state."""

    unit_bytes: int
    state_units: int


class UnitBytes(RankMessage, frozen=True):
    """A report with a piece of this rank's parts of the requested units."""

    payload: bytes
    is_last: bool


OnDisk = ForgetOwner | NoteFlushes | ScanDisk | ListFlushes
OfAdapters = HoldAdapter | PlaceAdapter | ForgetAdapter
OfUnits = DescribeUnits | ReadUnits | WriteUnits
Work = Launch | LaunchForward | SampleRows | SkipRows | CopyBlocks | OnDisk | OfAdapters | OfUnits
Command = Work | Close
OfStart = Started | NotStarted
OfCopies = MovesEnded | DiskReport | Scanned | FlushesDone
Report = OfStart | OfCopies | AdapterHeld | UnitShape | UnitBytes

ENCODER = msgspec.msgpack.Encoder()
COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
REPORTS: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
STARTS: msgspec.msgpack.Decoder[Start] = msgspec.msgpack.Decoder(Start)


def without_texts(step: Step) -> Step:
    """Return the step without tokens that only sampling reads, because only rank 0 samples."""
    if not any(row.new is not None for row in step.rows):
        return step
    replace = msgspec.structs.replace
    rows = [
        row
        if row.new is None
        else replace(row, new=replace(row.new, prompt_ids=b"", output_ids=b""))
        for row in step.rows
    ]
    return replace(step, rows=tuple(rows))
