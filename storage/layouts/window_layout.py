"""The layout of a ring: the last KV of a sequence, for all layers with a window.

    ring     | place 0 | place 1 | ... | last place |      block b of a sequence lies at b % places
    place    a block of KV of the layers with a window (`kv_layout`)

A token sees no key before its window. So for these layers, a sequence of any length needs only the
blocks that overlap its last window. Like a recurrent state, a ring has one size, is one contiguous
run, and cannot be cut back to an earlier position.

This module needs no torch, because commands that only plan read it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from storage.layouts.kv_layout import KvLayout
from storage.layouts.state_layout import StateLayout

# The blocks of a ring for a row's new tokens: the first new token's block, and the next block.
NEW_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """The layout of a ring of `places` blocks, each with the KV of the layers in `kv`."""

    kv: KvLayout
    places: int

    @classmethod
    def of(cls, kv: KvLayout, block_bytes: int) -> WindowLayout:
        """Lay out rings, each as long as a whole number of blocks of `block_bytes`.

        Raises ValueError if a layer of `kv` has no window.
        """
        windows = [group.window for group in kv.groups]
        longest = max(0 if window is None else window for window in windows)
        if None in windows:
            raise ValueError("a layer without a window has no ring")
        least = -(-(longest - 1) // kv.block_size) + NEW_BLOCKS
        step = block_bytes // gcd(block_bytes, kv.block_bytes)
        return cls(kv, -(-least // step) * step)

    def slice_of(self, rank: int, num_ranks: int, block_bytes: int) -> WindowLayout:
        """Return one rank's part of a ring. That rank's blocks have `block_bytes` bytes.

        Raises the errors of `KvLayout.slice_of`. Rings are equally long on all ranks of a stage.
        """
        return WindowLayout.of(self.kv.slice_of(rank, num_ranks), block_bytes)

    @property
    def num_layers(self) -> int:
        """The number of layers with a window."""
        return self.kv.num_layers

    @property
    def state_bytes(self) -> int:
        """The bytes of a ring."""
        return self.places * self.kv.block_bytes

    def blocks(self, block_bytes: int) -> int:
        """Return the number of blocks of `block_bytes` that a ring takes."""
        return -(-self.state_bytes // block_bytes)

    def scratch_slots(self, scratch_blocks: int) -> int:
        """Return the number of rings, rounded up, with as many bytes as `scratch_blocks` blocks."""
        return -(-scratch_blocks // self.places)


SlotLayout = StateLayout | WindowLayout
