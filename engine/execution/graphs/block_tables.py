"""The block tables with a copy on the device.

Each step sends to the device only the blocks that its sequences got since their last step.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.execution.block_tables import BlockRun, BlockTables
from engine.transfers import host_buffer, to_device


class DeviceTables(BlockTables):
    """The tables, with a copy `device`. Changes of the copy are ordered by the CUDA stream."""

    def __init__(
        self, *, num_batch_slots: int, num_blocks: int, scratch_block: int, device: torch.device
    ) -> None:
        super().__init__(
            num_batch_slots=num_batch_slots, num_blocks=num_blocks, scratch_block=scratch_block
        )
        self.device = torch.from_numpy(self.host.copy()).to(device)

    def _send(self, runs: list[BlockRun]) -> None:
        if len(runs) == 1:
            self._send_run(runs[0])
        else:
            self._send_scattered(runs)

    def _send_run(self, run: BlockRun) -> None:
        staging = host_buffer(run.blocks.shape, torch.int32, self.device.device)
        staging.numpy()[:] = run.blocks
        self.device[run.batch_slot, run.first : run.end].copy_(staging, non_blocking=True)

    def _send_scattered(self, runs: list[BlockRun]) -> None:
        width = self.host.shape[1]
        places = [run.batch_slot * width + np.arange(run.first, run.end) for run in runs]
        arrays = np.concatenate(places), np.concatenate([run.blocks for run in runs])
        self.device.view(-1).index_copy_(0, *to_device(arrays, self.device.device))
