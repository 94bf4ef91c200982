"""Copies of KV blocks and recurrent states between slots, and their outcomes, as data.

A block has a slot number in each tier. `prefix_cache` returns plans, and a mover in this package
executes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec


class Tier(Enum):
    """The tiers of blocks, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"

    __hash__ = object.__hash__  # faster than Enum's own hash, for singletons


# Until Python 3.12, looking up `Tier.DEVICE` takes ten times as long as these names.
DEVICE_TIER, HOST_TIER, DISK_TIER = Tier

NO_STATE = 0  # slot without a state, for padding and for rows that begin at a first token
FIRST_SLOT = 1  # the first slot for recurrent states


class Move(msgspec.Struct, frozen=True, gc=False):
    """A copy of a whole block from slot `source` of `source_tier` to `target` of `target_tier`.

    There is a `Move` for each moved block, so making, hashing and comparing it runs no Python code.
    `is_state` means that a recurrent state is copied. The slots of states are numbered separately
    from the slots of blocks.
    """

    source_tier: Tier
    source: int
    target_tier: Tier
    target: int
    is_state: bool = False


class TokenCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy of one token's KV on the device, from one slot to another.

    A slot is the block's number times the block size, plus the token's place in the block.
    """

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StateSlots:
    """The slots of recurrent states below the device: runs of blocks after the KV blocks.

    So states use the memory, the staging buffers and the records of blocks.
    """

    blocks: int
    first: Mapping[Tier, int]

    def of(self, tier: Tier, slot: int) -> range:
        """Return the blocks of the recurrent state in `slot` of a tier.

        On the device, these blocks belong to the state pool.
        """
        start = self.first.get(tier, 0) + slot * self.blocks
        return range(start, start + self.blocks)


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """The record stored with a block on disk, and compared when the block is read."""

    key: bytes  # the block's key, 16 bytes
    parent_key: bytes  # the key of the block before this block, 16 bytes
    namespace: bytes  # the block's namespace, 16 bytes
    owner: str  # the owner whose data key encrypts the block
    token_ids: bytes  # the block's tokens: block_size int32, little endian
    # How many requests had found the block when it was written to disk. Reading ignores this field.
    hits: int = 0
    # number of this part of the recurrent state after the block; None: the block's KV
    state_part: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """Copies to be made between tiers, in any order.

    Each move is reported once, as done, failed or lost. Until then nothing else may use the move's
    slots. The slots in `erase` are erased before any of `moves`, which may fill them again.
    """

    moves: tuple[Move, ...] = ()
    records: Mapping[Move, BlockRecord] = {}  # a record for every move to or from disk
    erase: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """The blocks copied from one tier to another in a batch, and the batch's seconds."""

    source: Tier
    target: Tier
    blocks: int
    seconds: float


@dataclass(slots=True)
class Completed:
    """The moves that have ended and were not reported before."""

    done: list[Move] = field(default_factory=list)
    # Failed moves: nothing arrived, and the source is intact.
    failed: list[Move] = field(default_factory=list)
    # Lost moves: the record on disk was damaged, or belonged to another block.
    lost: list[Move] = field(default_factory=list)
    # Times of copies between device and host.
    copied: list[Copied] = field(default_factory=list)
    # Moves to the device that are released before their end. Later steps wait for the missing
    # layers. The moves are done once one of these steps is over.
    released: list[Move] = field(default_factory=list)

    def add_copied(self, moves: Sequence[Move], blocks: int, seconds: float) -> None:
        """Add moves done by one batch of copies between the same two tiers."""
        self.done.extend(moves)
        one = moves[0]
        self.copied.append(Copied(one.source_tier, one.target_tier, blocks, seconds))
