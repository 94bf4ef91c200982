"""A run of whole KV blocks of one namespace, with their tokens, keys and tiers.

    tokens   int32, as raw bytes: compared and looked up without any array
    states   n bytes  in which tiers each block has a copy, or gets one (`residency`)
    slots    (3, n)   its slot in each tier; valid only where the state says so

Along a path from the root, a block's fastest tier is never faster than its predecessor's. So a run
starts with the blocks on the device (`num_device`). The blocks whose fastest copy is in the host
follow (up to `num_upper`), and then the blocks on disk alone.

Every method takes a few array operations, whatever the length of the run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefix_cache.hashing import KEY_BYTES, TokenIds, index_of
from prefix_cache.tree.residency import (
    BEGIN,
    BIT,
    CHANGES_FASTEST,
    DEVICE,
    HOST,
    IN_FLIGHT,
    TAKEN,
    WITHOUT,
    Change,
    States,
    change,
)
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER, Tier

BlockIds = npt.NDArray[np.int32]

Places = npt.NDArray[np.intp]
ROW = {DEVICE_TIER: 0, HOST_TIER: 1, DISK_TIER: 2}
TOKEN_BYTES = 4
NOT_ON_DEVICE, NOT_ABOVE_DISK = WITHOUT[DEVICE], WITHOUT[DEVICE | HOST]
NO_SLOTS: BlockIds = np.empty(0, np.int32)


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """Count the leading tokens that are equal."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


class Edge:
    """A tree edge, which owns its arrays. An append takes amortised constant time per block."""

    __slots__ = (
        "_block_size",
        "_keys",
        "_slots",
        "_states",
        "_tokens",
        "num_blocks",
        "num_device",
        "num_upper",
    )

    def __init__(
        self,
        tokens: TokenIds,
        block_ids: BlockIds,
        keys: bytes,
        block_size: int,
        tier: Tier = DEVICE_TIER,
    ) -> None:
        """Copy (n * block_size,) tokens, (n,) slots of `tier` and n keys of 16 bytes."""
        self._block_size = block_size
        self.num_blocks = len(block_ids)
        self._tokens = bytearray(tokens.data)
        self._slots: npt.NDArray[np.int32] = np.zeros((3, len(block_ids)), dtype=np.int32)
        self._slots[ROW[tier]] = block_ids
        self._states = bytearray([BIT[tier]]) * len(block_ids)
        self._keys = bytearray(keys)
        self.num_device = len(block_ids) if tier is DEVICE_TIER else 0
        self.num_upper = 0 if tier is DISK_TIER else len(block_ids)

    def __len__(self) -> int:
        return self.num_blocks

    @property
    def tokens(self) -> TokenIds:
        """A copy of all tokens, (n * block_size,)."""
        return np.frombuffer(bytes(self._tokens), np.int32)

    @property
    def block_ids(self) -> BlockIds:
        """A view of the slots on the device, (n,)."""
        return self._slots[0, : self.num_blocks]

    @property
    def states(self) -> States:
        """A view of the blocks' residency states, (n,).

        The edge cannot grow while the view exists.
        """
        return np.frombuffer(self._states, np.uint8)

    def states_of(self, start: int, end: int) -> bytearray:
        """Copy the residency states of the blocks [start, end)."""
        return self._states[start:end]

    def translated(self, table: bytes) -> bytes:
        """Translate the blocks' residency states by `table` of 256 bytes."""
        return bytes(self._states.translate(table))

    @property
    def keys(self) -> bytes:
        """A copy of the keys, 16 bytes for each block."""
        return bytes(self._keys)

    def key(self, index: int) -> bytes:
        """Return the key of one block."""
        return bytes(self._keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])

    def place_of(self, key: bytes) -> int | None:
        """Return the index of the block with this key, or None."""
        return index_of(self._keys, key)

    def keys_of(self, start: int, end: int) -> bytes:
        """Copy the keys of the blocks [start, end), or none if end is before start."""
        return bytes(self._keys[start * KEY_BYTES : end * KEY_BYTES])

    @property
    def last_key(self) -> bytes:
        """The key of the last block."""
        return bytes(self._keys[-KEY_BYTES:])

    @property
    def is_on_device(self) -> bool:
        """True if all blocks have a copy on the device."""
        return self.num_device == self.num_blocks

    def num_copies(self, tier: Tier) -> int:
        """Count the blocks that have a whole copy in `tier`."""
        return len(self._states.translate(None, WITHOUT[BIT[tier]]))

    def slots(self, tier: Tier) -> BlockIds:
        """Return a view of the slots in `tier`, (n,)."""
        return self._slots[ROW[tier], : self.num_blocks]

    def held_slots(self, start: int = 0) -> list[tuple[Tier, BlockIds]]:
        """Return, by tier, the slots held by blocks from index `start` on.

        A slot that is being filled counts as held.
        """
        states, end = self._states[start:], self.num_blocks
        if states.count(states[:1]) == len(states):
            return [(tier, self._slots[ROW[tier], start:end]) for tier in TAKEN[states[0]]]
        held = [(tier, self.held_slots_in(tier, start)) for tier in Tier]
        return [(tier, some) for tier, some in held if len(some)]

    def held_slots_in(self, tier: Tier, start: int = 0) -> BlockIds:
        """Return the slots of `tier` held by blocks from index `start` on.

        A slot that is being filled counts as held.
        """
        bits = BIT[tier] | IN_FLIGHT * BIT[tier]
        held = len(self._states[start:].translate(None, WITHOUT[bits]))
        if not held:
            return NO_SLOTS
        slots = self._slots[ROW[tier], start : self.num_blocks]
        if held == len(slots):
            return slots
        return np.compress(self.states[start:] & bits != 0, slots)

    def run_in(self, tier: Tier) -> tuple[int, int]:
        """Return the range of blocks whose fastest tier is `tier`."""
        if tier is DEVICE_TIER:
            return 0, self.num_device
        if tier is HOST_TIER:
            return self.num_device, self.num_upper
        return self.num_upper, self.num_blocks

    def first_block(self) -> bytes:
        """Return the first block's tokens as bytes."""
        return bytes(self._tokens[: TOKEN_BYTES * self._block_size])

    def block(self, index: int) -> TokenIds:
        """Copy one block's tokens."""
        step = TOKEN_BYTES * self._block_size
        return np.frombuffer(bytes(self._tokens[index * step : (index + 1) * step]), np.int32)

    def tokens_from(self, start: int, count: int) -> bytes:
        """Copy up to `count` tokens from token `start` on, as bytes."""
        return bytes(self._tokens[start * TOKEN_BYTES : (start + count) * TOKEN_BYTES])

    def common_blocks(self, tokens: memoryview) -> int:
        """Count the leading whole blocks that are equal to `tokens`, given as bytes."""
        mine = self._tokens
        if len(tokens) >= len(mine) and mine.startswith(tokens[: len(mine)]):
            return self.num_blocks
        length = min(len(mine), len(tokens)) // TOKEN_BYTES
        left, right = (np.frombuffer(one, np.int32, length) for one in (mine, tokens))
        return common_prefix(left, right) // self._block_size

    def change(self, places: slice | Places, event: Change, tier: Tier) -> None:
        """Apply `event` to the blocks at these indices. Raises IllegalTransition."""
        if isinstance(places, slice):
            self._states[places] = change(self._states[places], event, tier)
        else:
            states = self.states
            follow = change(states[places].tobytes(), event, tier)
            states[places] = np.frombuffer(follow, np.uint8)
        if (event, tier) in CHANGES_FASTEST:
            self.recount()

    def begin(self, start: int, ends: tuple[Tier, Tier], slots: BlockIds) -> list[int]:
        """Record that copies of blocks to `slots` have begun, and return the source slots.

        `start` is the index of the first copied block. `ends` are the source tier and the target
        tier. Raises IllegalTransition.
        """
        source, target = ends
        places = slice(start, start + len(slots))
        self.change(places, BEGIN, target)
        self._slots[ROW[target], places] = slots
        froms: list[int] = self._slots[ROW[source], places].tolist()
        return froms

    def recount(self) -> None:
        """Recount `num_device` and `num_upper`."""
        states = self._states
        self.num_device = len(states.translate(None, NOT_ON_DEVICE))
        self.num_upper = len(states.translate(None, NOT_ABOVE_DISK))

    def append(self, run: Edge) -> None:
        """Add the blocks of `run` at the tail."""
        total = self.num_blocks + len(run)
        if total > self._slots.shape[1]:
            self._reserve(total + total // 2)
        self._tokens += run._tokens
        self._slots[:, self.num_blocks : total] = run._slots[:, : len(run)]
        self._states += run._states
        self._keys += run._keys
        self.num_blocks = total
        self.num_device += run.num_device
        self.num_upper += run.num_upper

    def trim(self, count: int) -> bytes:
        """Drop the last `count` blocks and return their keys."""
        self.num_blocks = left = self.num_blocks - count
        keys = bytes(self._keys[left * KEY_BYTES :])
        del self._keys[left * KEY_BYTES :], self._states[left:]
        del self._tokens[left * TOKEN_BYTES * self._block_size :]
        if self.num_device > left:
            self.num_device = left
        if self.num_upper > left:
            self.num_upper = left
        return keys

    def split(self, at: int) -> Edge:
        """Cut off and return the first `at` blocks. This edge keeps the later blocks."""
        head_bytes = at * TOKEN_BYTES * self._block_size
        head = Edge(
            np.frombuffer(bytes(self._tokens[:head_bytes]), np.int32),
            self._slots[0, :at],
            bytes(self._keys[: at * KEY_BYTES]),
            self._block_size,
        )
        head._slots[:] = self._slots[:, :at]
        head._states[:] = self._states[:at]
        del self._states[:at]
        head.num_device, head.num_upper = min(self.num_device, at), min(self.num_upper, at)
        del self._tokens[:head_bytes]
        self._slots = self._slots[:, at : self.num_blocks].copy()
        del self._keys[: at * KEY_BYTES]
        self.num_blocks -= at
        self.num_device -= head.num_device
        self.num_upper -= head.num_upper
        return head

    def _reserve(self, num_blocks: int) -> None:
        slots = np.zeros((3, num_blocks), dtype=np.int32)
        slots[:, : self.num_blocks] = self._slots[:, : self.num_blocks]
        self._slots = slots
