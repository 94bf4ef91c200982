"""The arithmetic for the number of blocks in the pools.

Elsewhere: the measurement of bytes (`activation`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from engine.config import EngineConfig
from engine.models.errors import PoolTooSmall
from prefix_cache.tiers.checkpoints import ANSWER_SLOTS, LEAST_SLOTS
from storage.layouts.window_layout import SlotLayout, WindowLayout
from storage.move import FIRST_SLOT

ALL = Fraction(1)
CPU_BATCH_TOKENS, CUDA_BATCH_TOKENS = 512, 8192  # default tokens of the largest step
# Share of free memory for the pool; other programs and mapped weights need memory too.
CPU_SHARE = 0.25
CPU_LIMIT = 4 * 1024**3
HOST_SHARE = 0.25  # share of free memory for the host tier
# Maximum bytes if there is a GPU, because pinning a few GiB takes about a second.
HOST_LIMIT = 64 * 1024**3
AHEAD_PART = 8  # at most 1 in 8 device blocks is kept free by copying blocks to lower tiers early

# The maximum number of tokens in the blocks that are kept free: those of two large steps.
AHEAD_TOKENS = 16_384
# The host memory reserved for opening a model on a GPU after the size of the host tier was
# computed: CUDA's context, libraries, captured graphs. Weights are not included, because they are
# read through memory that the system can reclaim.
OPENING_BYTES = 2 * 1024**3
TOKENS_PER_WINDOW = 2048  # minimum tokens of KV in the cache per cached ring buffer
RUNNING_PART = 0.5  # maximum share of the device tier for running sequences' recurrent states
CPU_HOST_BYTES = 256 * 1024**2  # small, because on a CPU the device pool takes the same memory


def blocks_for_tokens(cache_tokens: int, block_size: int) -> int:
    """Return the number of whole blocks in `cache_tokens`. Raises PoolTooSmall if it is 0."""
    return _at_least_one(cache_tokens // block_size, f"cache_tokens {cache_tokens}")


@dataclass(frozen=True, slots=True)
class PoolBudget:
    """The bytes that the device tier may take.

    `given` says how the bytes were computed. It is used in error messages.
    """

    num_bytes: int
    given: str


def budget_on_cuda(*, free: int, weights: int, activations: int, fraction: float) -> PoolBudget:
    """Return the pool's bytes if the engine takes `fraction` of the memory that was free at first.

    `free` are the bytes that are free now that the `weights` are loaded. `activations` are the
    bytes for the largest step.
    """
    return PoolBudget(
        int((free + weights) * fraction) - weights - activations,
        f"{free} bytes free beside {weights} of weights, {activations} of them for a step "
        "(cpu_offload_gb keeps weights in host memory)",
    )


def budget_on_cpu(free: int) -> PoolBudget:
    """Return CPU_SHARE of the free memory, at most 4 GiB."""
    return PoolBudget(min(int(free * CPU_SHARE), CPU_LIMIT), f"{free} bytes of free memory")


@dataclass(frozen=True, slots=True)
class StateSizes:
    """The sizes that determine the number of recurrent states.

    For `cache_ratio`, see the setting `state_cache_ratio`.
    """

    state_bytes: int
    max_running: int
    cache_ratio: float
    scratch_bytes: int = 0  # bytes needed in addition to the slots (`window_pool`)
    of_sequence: int = ANSWER_SLOTS


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """The number of blocks, and the number of state slots including the unused slot 0.

    Without recurrent states, the number of slots is 0.
    """

    num_blocks: int
    num_states: int = 0


def pool_sizes(budget: PoolBudget, bytes_per_block: int, states: StateSizes | None) -> PoolSizes:
    """Divide a budget between blocks and recurrent states.

    First, states of running sequences get their bytes, at most RUNNING_PART of the budget. The
    remaining bytes are divided between KV and cached states by `cache_ratio`. Raises PoolTooSmall
    if no block fits.
    """
    if states is None:
        blocks = budget.num_bytes // bytes_per_block
        return PoolSizes(_at_least_one(blocks, budget.given))
    budget = replace(budget, num_bytes=budget.num_bytes - states.scratch_bytes)
    fixed = _fixed_states(states, budget)
    rest = budget.num_bytes - fixed * states.state_bytes
    num_blocks = int(rest / (1 + states.cache_ratio)) // bytes_per_block
    given = f"{budget.given}, {fixed} states of {states.state_bytes} bytes first"
    _at_least_one(num_blocks, given)
    cached = (rest - num_blocks * bytes_per_block) // states.state_bytes
    return PoolSizes(num_blocks, fixed + cached)


def state_slots(budget: PoolBudget, kv_bytes: int, states: StateSizes | None) -> int:
    """Return the number of recurrent state slots that fit in addition to `kv_bytes` of KV."""
    if states is None:
        return 0
    return _fixed_states(states, budget) + int(kv_bytes * states.cache_ratio) // states.state_bytes


def cache_ratio(given: float, states: SlotLayout | None, token_bytes: int) -> float:
    """Return the bytes of cached recurrent states per byte of KV. For ring buffers, return less.

    A ring buffer takes as much memory as the KV of many tokens, and is useful only at positions
    where prompts diverge.
    """
    if not isinstance(states, WindowLayout):
        return given
    return min(given, states.state_bytes / (TOKENS_PER_WINDOW * token_bytes))


def scratch_blocks(batch_tokens: int, max_running: int, block_size: int) -> int:
    """Return the maximum number of scratch blocks that the prompts of a step need.

    Each prompt has more than one token.
    """
    return batch_tokens // block_size + min(max_running, batch_tokens // 2) + 1


def _fixed_states(states: StateSizes, budget: PoolBudget) -> int:
    most = int(budget.num_bytes * RUNNING_PART) // states.state_bytes
    running = min(states.max_running * states.of_sequence, most)
    return FIRST_SLOT + max(running, LEAST_SLOTS)


def host_blocks(
    config: EngineConfig,
    bytes_per_block: int,
    *,
    on_cuda: bool,
    free: int,
    share: Fraction = ALL,
    state_blocks: int = 0,
) -> int:
    """Return the number of blocks of the host tier, including those for recurrent states.

    `free` is in bytes. Each of several ranks has a part of every block, and a `share` of the
    memory. For `state_blocks`, see `below`. If the operator has set a number of tokens, blocks for
    states are added.
    """
    if config.cache.host_cache_tokens is not None:
        blocks = config.cache.host_cache_tokens // config.cache.block_size
        if not state_blocks:
            return blocks
        beside = int(blocks * config.cache.state_cache_ratio)
        return blocks + beside // state_blocks * state_blocks
    if config.cache.host_cache_gib is not None:
        return int(int(config.cache.host_cache_gib * 1024**3) * share) // bytes_per_block
    taken = min(int(free * HOST_SHARE), HOST_LIMIT if on_cuda else CPU_HOST_BYTES)
    return int(taken * share) // bytes_per_block


def below(num_blocks: int, state_blocks: int, cache_ratio: float) -> PoolSizes:
    """Divide the blocks of a lower tier between KV and cached recurrent states by `cache_ratio`.

    `state_blocks` is the size of a state in blocks, or 0 without states.
    """
    if not state_blocks:
        return PoolSizes(num_blocks)
    states = int(num_blocks * cache_ratio / (1 + cache_ratio)) // state_blocks
    return PoolSizes(num_blocks - states * state_blocks, states)


def host_free_beside_weights(config: EngineConfig, free: int) -> int:
    """Return how many of the `free` bytes of host memory the host tier may use, with a GPU.

    Offloaded weights come first, because the engine can run without a host tier.
    """
    weights = int(config.model.cpu_offload_gb * 1024**3) * config.ranks.num_ranks
    return max(free - weights - OPENING_BYTES, 0)


def blocks_ahead(num_blocks: int, block_size: int) -> int:
    """Return the number of device blocks to keep free if there is a lower tier.

    If blocks are free, a request is admitted immediately. If blocks must be copied to a lower tier
    first, it waits for a step or more.
    """
    return min(num_blocks // AHEAD_PART, AHEAD_TOKENS // block_size)


def _at_least_one(num_blocks: int, given: str) -> int:
    if num_blocks < 1:
        raise PoolTooSmall(f"{given}: not one block fits")
    return num_blocks
