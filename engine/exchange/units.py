"""The units of a prefix as bytes: its KV blocks, and its recurrent state in block-sized pieces.

The owner thread reads and writes both pools on the CUDA stream of the steps, so a copy runs after
earlier steps and before later steps. Copying a unit takes a few microseconds in host memory, and a
few hundred microseconds on a GPU.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from storage.pools.device_pool import DevicePool
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool
from storage.tier_mover import block_bytes_of

Rows = npt.NDArray[np.int64]


class UnitMemory(Protocol):
    """An interface to the blocks and the recurrent states of one device."""

    @property
    def unit_bytes(self) -> int:
        """The bytes of one unit."""
        ...

    @property
    def state_units(self) -> int:
        """The number of units of one recurrent state, or 0 without recurrent layers."""
        ...

    def read(self, blocks: Rows, states: Rows) -> bytes:
        """Read KV blocks by slot, then units of recurrent states by row."""
        ...

    def write(self, blocks: Rows, states: Rows, payload: memoryview) -> None:
        """Write units to slots and rows. `payload` has one unit for each row."""
        ...


class DeviceUnits:
    """The units (blocks and pieces of recurrent states) on one rank's device."""

    def __init__(self, pool: DevicePool, states: StatePool | WindowPool | None) -> None:
        """Use the pool of blocks, and the pool of recurrent states or windows if there is one."""
        self.unit_bytes = pool.block_bytes
        self.state_units = 0 if states is None else states.slot_blocks
        self._late = pool.late
        self._blocks = block_bytes_of(pool)
        self._states = None if states is None else states.blocks

    def read(self, blocks: Rows, states: Rows) -> bytes:
        """Read the bytes of these rows, and wait for the device."""
        self._wait_for_loads()
        parts = [self._blocks[self._on_device(blocks)]]
        if self._states is not None and len(states):
            parts.append(self._states[self._on_device(states)])
        return b"".join(part.cpu().numpy().tobytes() for part in parts)

    def write(self, blocks: Rows, states: Rows, payload: memoryview) -> None:
        """Write the bytes of these rows, and wait for the device."""
        self._wait_for_loads()
        units = torch.frombuffer(bytearray(payload), dtype=torch.uint8).view(-1, self.unit_bytes)
        units = units.to(self._blocks.device)
        self._blocks[self._on_device(blocks)] = units[: len(blocks)]
        if self._states is not None and len(states):
            self._states[self._on_device(states)] = units[len(blocks) :]

    def _wait_for_loads(self) -> None:
        if self._late is not None:
            self._late.wait()  # the last layers of a block may still be loading

    def _on_device(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(rows).to(self._blocks.device)
