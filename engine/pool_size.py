"""How many blocks the device pool gets. Pure: numbers in, numbers out.

Knows: bytes. Does not know: how they were measured (`activation`), or what a pool is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.errors import PoolTooSmall

CPU_SHARE = 0.25  # of free memory: the machine is somebody's, and weights are mapped files
CPU_LIMIT = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory, in bytes, after the weights are loaded.

    `free` is what nobody uses, `weights` what they took, `activations` what the largest step
    needs besides.
    """

    free: int
    weights: int
    activations: int


def blocks_for_tokens(cache_tokens: int, block_size: int) -> int:
    """The whole blocks in `cache_tokens`; raises PoolTooSmall when there is none."""
    return _at_least_one(cache_tokens // block_size, f"cache_tokens {cache_tokens}")


def blocks_on_cuda(memory: Memory, fraction: float, bytes_per_block: int) -> int:
    """Blocks that fit when all of the engine takes `fraction` of what was free before it came."""
    budget = int((memory.free + memory.weights) * fraction) - memory.weights - memory.activations
    return _at_least_one(budget // bytes_per_block, f"{memory}")


def blocks_on_cpu(free: int, bytes_per_block: int) -> int:
    """Blocks in a modest share of the free memory, at most 4 GiB."""
    budget = min(int(free * CPU_SHARE), CPU_LIMIT)
    return _at_least_one(budget // bytes_per_block, f"{free} bytes of free memory")


def _at_least_one(num_blocks: int, given: str) -> int:
    if num_blocks < 1:
        raise PoolTooSmall(f"{given}: not one block fits")
    return num_blocks
