"""The device tier's memory: one tensor of all KV blocks, views by layer, and copies within it.

The first dimension is the block. So a block is one contiguous run of all layers and is moved by one
plain copy. The layout (`kv_layout`) describes the inside of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.ops import CopyBlocks
from storage.errors import PoolDoesNotFit, UnknownSlot, UnsupportedMove
from storage.layerwise_load import layerwise_load_of
from storage.layouts.kv_layout import FP8, KvLayout
from storage.move import Move, Tier, TokenCopy
from storage.pools.zeroed import zeroed


class DevicePool:
    """The device pool: one tensor, allocated once and zeroed.

    `tensor` (num_blocks, numbers) is all blocks. The tensor's dtype is the first layer's, or uint8
    if that dtype is fp8. `layers` are the views of `layer_views`.

    Used by one thread, without a lock. The device's stream orders reads and writes of the views. A
    second stream must wait for an event of the first stream.
    """

    def __init__(
        self, layout: KvLayout, num_blocks: int, device: torch.device, max_late_bytes: int = 0
    ) -> None:
        """Allocate the pool.

        `max_late_bytes` bounds the bytes of a load that may be missing when steps start
        (`LayerwiseLoad`). Raises PoolDoesNotFit if `num_blocks` is under 1 or the device lacks the
        memory.
        """
        if num_blocks < 1:
            raise PoolDoesNotFit(f"a pool of {num_blocks} blocks holds no token")
        self.layout = layout
        self.num_blocks = num_blocks
        self.tensor = _allocate(layout, num_blocks, device)
        self.layers = layer_views(self.tensor, layout)
        self.late = layerwise_load_of(layout, max_late_bytes, device)

    @property
    def block_bytes(self) -> int:
        return self.layout.block_bytes


class Mover:
    """The mover within the device tier: copies in the given order, with few launches.

    Used by one thread only. On a GPU, `execute` queues the copies on the current stream and does
    not wait for the device. Work queued before the call reads the old content of the blocks, and
    work queued later reads the copies.
    """

    def __init__(self, pool: DevicePool, copy_blocks: CopyBlocks) -> None:
        self._pool = pool
        self._copy_blocks = copy_blocks

    def execute(self, moves: Sequence[Move]) -> None:
        """Copy all of `moves` in order. Later moves read the results of earlier moves.

        Raises UnsupportedMove or UnknownSlot before the first copy.
        """
        for move in moves:
            self._check(move)
        if moves and self._pool.late is not None:
            self._pool.late.wait()  # a source block may have late layers that are still loading
        for run in independent_runs(moves):
            source = self._ids([move.source for move in run])
            target = self._ids([move.target for move in run])
            self._copy_blocks(self._pool.tensor, source, target)

    def copy_tokens(self, copies: Sequence[TokenCopy]) -> None:
        """Copy all tokens at once. No copy may read a token that another copy writes.

        Raises UnknownSlot before the first copy.
        """
        size = self._pool.layout.block_size
        for copy in copies:
            self._check_slot(copy.source // size)
            self._check_slot(copy.target // size)
        if copies and self._pool.late is not None:
            self._pool.late.wait()
        read = self._ids([copy.source for copy in copies])
        written = self._ids([copy.target for copy in copies])
        for layer in self._pool.layers:
            kv = layer.view(torch.uint8) if layer.dtype.itemsize == 1 else layer
            values = kv[read // size, :, :, read % size]
            kv[written // size, :, :, written % size] = values

    def _check(self, move: Move) -> None:
        if (move.source_tier, move.target_tier) != (Tier.DEVICE, Tier.DEVICE):
            raise UnsupportedMove(
                f"the device's mover cannot copy from {move.source_tier.value} to "
                f"{move.target_tier.value}"
            )
        for slot in (move.source, move.target):
            self._check_slot(slot)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._pool.num_blocks:
            raise UnknownSlot(f"slot {slot} is not in 0..{self._pool.num_blocks - 1}")

    def _ids(self, ids: list[int]) -> Tensor:
        """Copy `ids` to the pool's device, (n,) int64. Pinned memory avoids waiting."""
        device = self._pool.tensor.device
        on_host = torch.tensor(ids, dtype=torch.int64, pin_memory=device.type == "cuda")
        return on_host.to(device, non_blocking=True)


def independent_runs(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """Split `moves` within one tier into runs of moves that may be made at the same time.

    In a run, no target is another move's source or target. A move onto itself is left out. The runs
    follow each other in the plan's order.
    """
    run: list[Move] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for move in moves:
        if move.source == move.target:
            continue
        if move.target in sources or move.target in targets or move.source in targets:
            yield run
            run, sources, targets = [], set(), set()
        run.append(move)
        sources.add(move.source)
        targets.add(move.target)
    if run:
        yield run


def empty_blocks(layout: KvLayout, num_blocks: int, device: torch.device) -> Tensor:
    """Allocate `DevicePool.tensor`, zeroed so that masked reads of unwritten slots are finite."""
    dtype = torch.uint8 if layout.group_of(0).dtype == FP8 else _dtype(layout, 0)
    return zeroed(num_blocks * layout.block_bytes, device).view(dtype).view(num_blocks, -1)


def layer_views(blocks: Tensor, layout: KvLayout) -> tuple[Tensor, ...]:
    """Return views of each layer's KV in `blocks`, (blocks, 2, kv heads, block size, head dim).

    The views are strided by the bytes of a block and copy nothing. A layer without values has the
    shape (blocks, 1, ...).
    """
    return tuple(_layer_view(blocks, layout, layer) for layer in range(layout.num_layers))


def _layer_view(blocks: Tensor, layout: KvLayout, layer: int) -> Tensor:
    group, dtype = layout.group_of(layer), _dtype(layout, layer)
    numbers = blocks.view(torch.uint8).view(dtype)
    head = layout.block_size * group.head_dim
    return numbers.as_strided(
        (len(blocks), group.planes, group.num_kv_heads, layout.block_size, group.head_dim),
        (numbers.shape[1], group.num_kv_heads * head, head, group.head_dim, 1),
        layout.offset(layer) // dtype.itemsize,
    )


def _dtype(layout: KvLayout, layer: int) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, layout.group_of(layer).dtype)
    return dtype


def _allocate(layout: KvLayout, num_blocks: int, device: torch.device) -> Tensor:
    try:
        return empty_blocks(layout, num_blocks, device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        wanted = num_blocks * layout.block_bytes
        raise PoolDoesNotFit(f"{wanted} bytes of KV do not fit on {device}") from error
