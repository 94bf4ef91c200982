"""The ring buffers that hold the KV of layers with an attention window, during one step.

    decode, VERIFY    block b is in the row's ring, at index b % places
    other rows        earlier blocks are in the row's ring, blocks of new tokens in scratch blocks

A ring has `places` blocks. Before the forward pass, a ring is copied if its row reads one slot and
writes another. The slots differ for prompts, and if the cache must keep the ring unchanged. After
the forward pass, the last blocks of prompts are copied from the scratch blocks to their rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.step import Row, count_decodes
from engine.transfers import to_device
from kernels.attention.batch_layout import BatchLayout
from kernels.ops import CopyBlocks
from storage.pools.window_pool import RingShape, WindowPool

Ints = npt.NDArray[np.int32]
Wide = npt.NDArray[np.int64]
ALL_IN_RING = 2**30  # a number of blocks that no sequence reaches


@dataclass(frozen=True, slots=True)
class RingRows:
    """The locations of the blocks of R rows. Each field is (R,) int32.

    Block b of row r has the id `rings[r] * places + b % places` if b < `ring_ends[r]`, else `b +
    scratch_starts[r]`.
    """

    rings: Ints
    ring_ends: Ints
    scratch_starts: Ints

    def blocks(self, rows: Wide, blocks: Wide, shape: RingShape) -> Wide:
        """Return the window pool's ids (N,) for `blocks` of the sequences in `rows`."""
        ids: Wide = self.rings[rows].astype(np.int64) * shape.places + blocks % shape.places
        is_new = blocks >= self.ring_ends[rows]
        ids[is_new] = (blocks + self.scratch_starts[rows])[is_new]
        return ids


def ring_rows(rows: Sequence[Row], shape: RingShape) -> RingRows:
    """Locate the blocks of `rows`, decodes first. A step's prompts divide the scratch blocks."""
    decodes = count_decodes(rows)
    starts, ends = (
        np.array([-(-one // shape.block_size) for one in ones], np.int32)
        for ones in ([row.start for row in rows], [row.end for row in rows])
    )
    ring_ends = np.full(len(rows), ALL_IN_RING, np.int32)
    ring_ends[decodes:] = starts[decodes:]
    new = (ends - starts)[decodes:]
    scratch_starts = np.zeros(len(rows), np.int32)
    scratch_starts[decodes:] = shape.scratch + np.cumsum(new) - new - starts[decodes:]
    rings = np.array([row.state_out for row in rows], np.int32)
    return RingRows(rings, ring_ends, scratch_starts)


def ring_slots(rows: Sequence[Row], places: RingRows, shape: RingShape) -> Wide:
    """Return the slots (T,) to which the tokens' KV is written, as in `BatchLayout.slots`."""
    starts = np.array([row.start for row in rows], np.int64)
    counts = np.array([row.num_new for row in rows], np.int64)
    of_row = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(len(of_row)) + (starts - np.cumsum(counts) + counts)[of_row]
    slots: Wide = places.blocks(of_row, positions // shape.block_size, shape) * shape.block_size
    slots += positions % shape.block_size
    return slots


@dataclass(frozen=True, slots=True)
class RingTables:
    """The fields of `RingRows` on the device, and the tokens' `slots` (T,) int64."""

    rings: Tensor
    ring_ends: Tensor
    scratch_starts: Tensor
    slots: Tensor

    def layout(self, layout: BatchLayout, shape: RingShape) -> BatchLayout:
        """Return the step's layout for the layers with a window.

        Rows do not share reads here, because most shared prefixes end before the window begins.
        """
        width = layout.block_tables.shape[1]
        blocks = torch.arange(width, dtype=torch.int32, device=self.rings.device)
        in_ring = self.rings[:, None] * shape.places + blocks % shape.places
        # Ids after a row's context are never read, but must be valid block ids.
        in_scratch = (blocks + self.scratch_starts[:, None]).clamp_(max=shape.num_blocks - 1)
        tables = torch.where(blocks < self.ring_ends[:, None], in_ring, in_scratch)
        return replace(layout, block_tables=tables, slots=self.slots, shared=None, splits=None)


@dataclass(frozen=True, slots=True)
class Rings:
    """The pool of rings, and the copies between its blocks that a step needs."""

    pool: WindowPool
    copy_blocks: CopyBlocks

    def enter(self, rows: Sequence[Row]) -> None:
        """Copy each row's ring to the slot that the row writes, before the forward pass."""
        moves = {
            row.state_out: row.state_in
            for row in rows
            if row.start and row.state_in != row.state_out
        }
        if moves:
            moved = np.array([[*moves.values()], [*moves]], np.int64)
            places = self.pool.shape.places
            read, written = moved[:, :, None] * places + np.arange(places)
            self._copy(read.reshape(-1), written.reshape(-1))

    def leave(self, rows: Sequence[Row]) -> None:
        """Copy the last new blocks of prompts to their rings, after the forward pass."""
        shape, first = self.pool.shape, count_decodes(rows)
        if first == len(rows):
            return
        places = ring_rows(rows, shape)
        ends = [-(-row.end // shape.block_size) for row in rows[first:]]
        starts = np.maximum(places.ring_ends[first:], np.array(ends) - shape.places)
        counts = ends - starts
        of_row = np.repeat(np.arange(first, len(rows)), counts)
        blocks = np.concatenate([np.arange(*run) for run in zip(starts, ends, strict=True)])
        rings = places.rings[of_row].astype(np.int64) * shape.places
        self._copy(places.blocks(of_row, blocks, shape), rings + blocks % shape.places)

    def _copy(self, source: Wide, target: Wide) -> None:
        if len(source):
            given = [np.ascontiguousarray(one) for one in (source, target)]
            self.copy_blocks(self.pool.rings, *to_device(given, self.pool.rings.device))
