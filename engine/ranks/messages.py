"""What rank 0 tells the other ranks, and what they report.

    ring      Launch, LaunchForward, SampleRows | CopyBlocks | ForgetOwner, NoteFlushes, ScanDisk
              Lend, LendBlocks, EndLending | FetchSlices, LeaveSlices | Close
    socket    Start -->   <-- Started | NotStarted, MovesEnded, DiskReport, Scanned,
                              FlushesDone, LendingEnded, SlicesFetched

What is in the ring is done in its order. Every message is typed; one that does not decode ends the
process that got it.
"""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.ranks.ring import ReaderEnds
from engine.step import Step
from storage.disk.stats import DiskState
from storage.move import BlockRecord, Move, Plan

MOST_MOVES = 8192  # in one report
MOST_SCANNED = 2048  # slots in one report
MOST_FLUSHES = 1024  # in one report
DIGEST_BYTES = 16


class RankMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all."""


class Start(RankMessage, frozen=True):
    """The first message on the socket: what to load, as which rank, and where the ranks meet.

    `meeting` is the path of a file that the rank inherits.
    """

    config: EngineConfig
    rank: int
    ring: ReaderEnds
    meeting: str


class Launch(RankMessage, frozen=True):
    """Compute a step."""

    step: Step


class LaunchForward(RankMessage, frozen=True):
    """Compute a step up to the sampling. `SampleRows` may follow."""

    step: Step


class SampleRows(RankMessage, frozen=True):
    """The rows of the step before are sampled."""


class CopyBlocks(RankMessage, frozen=True):
    """Carry out a plan (`storage.move.Plan`). `records` has one of each move, or None."""

    moves: tuple[Move, ...]
    records: tuple[BlockRecord | None, ...]
    erase: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan) -> CopyBlocks:
        """The plan as a message."""
        records = tuple(plan.records.get(move) for move in plan.moves)
        return cls(plan.moves, records, plan.erase)

    def plan(self) -> Plan:
        """The message as a plan."""
        pairs = zip(self.moves, self.records, strict=True)
        records = {move: record for move, record in pairs if record is not None}
        return Plan(self.moves, records, self.erase)


class ForgetOwner(RankMessage, frozen=True):
    """Make all records of an owner unreadable."""

    owner: str


class NoteFlushes(RankMessage, frozen=True):
    """Remember that these flushes are done, once all is erased that was to be before."""

    flushes: tuple[str, ...]


class ScanDisk(RankMessage, frozen=True):
    """Which records are there?"""


class ListFlushes(RankMessage, frozen=True):
    """Which flushes were done on what lies there?"""


class Lend(RankMessage, frozen=True):
    """Another engine may ask for slices under this ticket; blocks follow."""

    ticket: bytes


class LendBlocks(RankMessage, frozen=True):
    """Send the slices of these blocks, which are leased until `LendingEnded` was reported."""

    ticket: bytes
    first: int  # position of the first one
    spans: tuple[tuple[int, bytes], ...]  # of a NamespacePath
    block_keys: bytes
    token_ids: bytes  # int32, little endian
    slots: bytes  # likewise


class EndLending(RankMessage, frozen=True):
    """No more blocks will follow; unless `is_all`, those that were not sent are not."""

    ticket: bytes
    why: str
    is_all: bool


class FetchSlices(RankMessage, frozen=True):
    """Fetch this rank's slices of the blocks `first` up to `end` of a prompt into their slots."""

    number: int
    ticket: bytes
    addresses: tuple[str, ...]  # where each rank from 1 on asks
    spans: tuple[tuple[int, bytes], ...]  # of a NamespacePath
    token_ids: bytes  # int32, little endian; from position 0 on
    block_keys: bytes
    block_ids: bytes  # int32, little endian; slots of all positions
    first: int
    end: int
    within_s: float  # from now on


class LeaveSlices(RankMessage, frozen=True):
    """Write no more of a fetch: its slots may be given to others from here on."""

    number: int


class Close(RankMessage, frozen=True):
    """Let what was written reach the disk, and end."""


class Started(RankMessage, frozen=True):
    """Ready for steps.

    `address`: where other engines ask for this rank's slices; None: nowhere.
    """

    block_bytes: int = 0  # of what this rank has of a block
    address: str | None = None


class NotStarted(RankMessage, frozen=True):
    """The start failed; `is_refused`: because of the model's files."""

    text: str
    is_refused: bool


class MovesEnded(RankMessage, frozen=True):
    """Moves that have ended, by their numbers: plans' moves are counted from 0 on."""

    done: list[int]
    failed: list[int]
    lost: list[int]


class DiskReport(RankMessage, frozen=True):
    """The state of a rank's disk, whenever it has changed."""

    state: DiskState
    generation: int
    forgetting: int


class Scanned(RankMessage, frozen=True):
    """Slots that hold a record, and 16 bytes for each that tell one record from another."""

    slots: list[int]
    digests: bytes
    is_last: bool


class FlushesDone(RankMessage, frozen=True):
    """Flushes that were done on what lies there, the oldest first."""

    flushes: list[str]
    is_last: bool


class LendingEnded(RankMessage, frozen=True):
    """Nothing that was lent under this ticket is read any more."""

    ticket: bytes


class SlicesFetched(RankMessage, frozen=True):
    """The first `arrived` blocks of a prompt are in place; `why` it ended, as `Fetch.why`."""

    number: int
    arrived: int
    why: str | None


Exchanged = Lend | LendBlocks | EndLending | FetchSlices | LeaveSlices
OnDisk = ForgetOwner | NoteFlushes | ScanDisk | ListFlushes
Work = Launch | LaunchForward | SampleRows | CopyBlocks | OnDisk | Exchanged
Command = Work | Close
OfStart = Started | NotStarted
Report = OfStart | MovesEnded | DiskReport | Scanned | FlushesDone | LendingEnded | SlicesFetched

ENCODER = msgspec.msgpack.Encoder()
COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
REPORTS: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
STARTS: msgspec.msgpack.Decoder[Start] = msgspec.msgpack.Decoder(Start)


def without_texts(step: Step) -> Step:
    """The step without tokens that only sampling reads, which rank 0 does alone."""
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
