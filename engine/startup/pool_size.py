"""The number of blocks in the device pool. Pure: numbers in, numbers out.

Knows: bytes. Does not know: how they were measured (`activation`), or what a pool is made of.
"""

from __future__ import annotations

from fractions import Fraction

from engine.config import EngineConfig
from engine.models.errors import PoolTooSmall

ALL = Fraction(1)
CPU_SHARE = 0.25  # part of free memory: other programs and mapped weights need memory too
CPU_LIMIT = 4 * 1024**3
HOST_SHARE = 0.25  # part of free memory for the host tier
HOST_LIMIT = 64 * 1024**3  # host tier below a GPU: pinning takes about a second for a few GiB
AHEAD_PART = 8  # most device blocks kept free by copying down early: one in so many
AHEAD_TOKENS = 16_384  # and blocks of at most so many tokens, which two large steps fill
# An allowance for opening a model on a GPU after the host tier has been sized: CUDA's context,
# libraries, captured graphs. No weights: they pass through memory that can be reclaimed,
# except those that stay in host memory, which are counted apart.
OPENING_BYTES = 2 * 1024**3
CPU_HOST_BYTES = 256 * 1024**2  # on a CPU the device's pool lies in the same memory


def blocks_for_tokens(cache_tokens: int, block_size: int) -> int:
    """Count the whole blocks in `cache_tokens`; raises PoolTooSmall when there is none."""
    return _at_least_one(cache_tokens // block_size, f"cache_tokens {cache_tokens}")


def blocks_on_cuda(
    *, free: int, weights: int, activations: int, fraction: float, bytes_per_block: int
) -> int:
    """Count the blocks that fit if the engine takes `fraction` of the initially free memory.

    In bytes: what is `free` now, what `weights` took, what the largest step needs on top.
    """
    budget = int((free + weights) * fraction) - weights - activations
    given = (
        f"{free} bytes free beside {weights} of weights, {activations} of them for a step "
        "(cpu_offload_gb keeps weights in host memory)"
    )
    return _at_least_one(budget // bytes_per_block, given)


def blocks_on_cpu(free: int, bytes_per_block: int) -> int:
    """Count the blocks in a modest share of the free memory, at most 4 GiB."""
    budget = min(int(free * CPU_SHARE), CPU_LIMIT)
    return _at_least_one(budget // bytes_per_block, f"{free} bytes of free memory")


def host_blocks(
    config: EngineConfig, bytes_per_block: int, *, on_cuda: bool, free: int, share: Fraction = ALL
) -> int:
    """Count the blocks of the host tier, or 0. `free`: bytes of free host memory.

    Of several ranks each has its part of every block, and as large a `share` of the memory: of the
    operator's number, or of what the machine has free.
    """
    if config.cache.host_cache_tokens is not None:
        return config.cache.host_cache_tokens // config.cache.block_size
    if config.cache.host_cache_gib is not None:
        return int(int(config.cache.host_cache_gib * 1024**3) * share) // bytes_per_block
    taken = min(int(free * HOST_SHARE), HOST_LIMIT if on_cuda else CPU_HOST_BYTES)
    return int(taken * share) // bytes_per_block


def host_free_beside_weights(config: EngineConfig, free: int) -> int:
    """Return the rest of `free` host bytes for the host tier, where a GPU is about to open.

    Weights that stay in host memory come first: the engine can run without a host tier.
    """
    weights = int(config.model.cpu_offload_gb * 1024**3) * config.ranks.num_ranks
    return max(free - weights - OPENING_BYTES, 0)


def blocks_ahead(num_blocks: int, block_size: int) -> int:
    """Count the device blocks to keep free where there is a lower tier.

    A request is admitted at once into free blocks; for blocks that copies are to free it waits a
    step or more.
    """
    return min(num_blocks // AHEAD_PART, AHEAD_TOKENS // block_size)


def _at_least_one(num_blocks: int, given: str) -> int:
    if num_blocks < 1:
        raise PoolTooSmall(f"{given}: not one block fits")
    return num_blocks
