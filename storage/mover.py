"""Executes moves within the device tier, in the order given, with as few launches as that allows.

Knows: the device's pool, and how a block is copied in it. Does not know: why a block moves, whose
it is (`prefix_cache` decides that), or moves between tiers (`tier_mover`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.ops import CopyBlocks
from storage.device_pool import DevicePool
from storage.errors import UnknownSlot, UnsupportedMove
from storage.move import Move, Tier


def independent_runs(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """Cut `moves`, all within one tier, into runs whose moves may happen at once.

    In a run no target is another move's source or target, so any order within it gives what
    the order given would; a move onto itself changes nothing and is left out. The runs, one
    after the other, are the plan in its order.
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


class Mover:
    """Copies blocks within the device tier.

    Concurrency: called by the one owner thread. On a GPU `execute` returns when the copies
    are queued on the current stream: work queued there before it sees the blocks as they
    were, work queued after it sees them moved, and nothing here waits for the device.
    """

    def __init__(self, pool: DevicePool, copy_blocks: CopyBlocks) -> None:
        self._pool = pool
        self._copy_blocks = copy_blocks

    def execute(self, moves: Sequence[Move]) -> None:
        """Do all of `moves`, later ones seeing what earlier ones wrote.

        Raises UnsupportedMove or UnknownSlot before the first copy, if any move is wrong.
        """
        for move in moves:
            self._check(move)
        if moves and self._pool.late is not None:
            self._pool.late.wait()  # a source may be a block whose late layers are on their way
        for run in independent_runs(moves):
            source = self._block_ids([move.source for move in run])
            target = self._block_ids([move.target for move in run])
            self._copy_blocks(self._pool.tensor, source, target)

    def _check(self, move: Move) -> None:
        if (move.source_tier, move.target_tier) != (Tier.DEVICE, Tier.DEVICE):
            raise UnsupportedMove(
                f"the device's mover cannot copy from {move.source_tier.value} to "
                f"{move.target_tier.value}"
            )
        for slot in (move.source, move.target):
            if not 0 <= slot < self._pool.num_blocks:
                raise UnknownSlot(f"slot {slot} is not in 0..{self._pool.num_blocks - 1}")

    def _block_ids(self, ids: list[int]) -> Tensor:
        """`ids` on the pool's device, (n,) int64; from pinned memory, so that nothing waits."""
        device = self._pool.tensor.device
        on_host = torch.tensor(ids, dtype=torch.int64, pin_memory=device.type == "cuda")
        return on_host.to(device, non_blocking=True)
