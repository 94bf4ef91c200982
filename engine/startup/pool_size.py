"""The number of blocks in the device pool. Pure: numbers in, numbers out.

Knows: bytes. Does not know: how they were measured (`activation`), or what a pool is made of.
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
CPU_BATCH_TOKENS, CUDA_BATCH_TOKENS = 512, 8192  # of the largest step, as a rule
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
TOKENS_PER_WINDOW = 2048  # fewest tokens of KV for each window that the cache has room for
RUNNING_PART = 0.5  # most of the device tier that running sequences' states take
CPU_HOST_BYTES = 256 * 1024**2  # on a CPU the device's pool lies in the same memory


def blocks_for_tokens(cache_tokens: int, block_size: int) -> int:
    """Count the whole blocks in `cache_tokens`; raises PoolTooSmall when there is none."""
    return _at_least_one(cache_tokens // block_size, f"cache_tokens {cache_tokens}")


@dataclass(frozen=True, slots=True)
class PoolBudget:
    """Bytes for the device tier. `given`: their source, for the error's text."""

    num_bytes: int
    given: str


def budget_on_cuda(*, free: int, weights: int, activations: int, fraction: float) -> PoolBudget:
    """Return the rest if the engine takes `fraction` of the initially free memory.

    In bytes: what is `free` now, what `weights` took, what the largest step needs on top.
    """
    return PoolBudget(
        int((free + weights) * fraction) - weights - activations,
        f"{free} bytes free beside {weights} of weights, {activations} of them for a step "
        "(cpu_offload_gb keeps weights in host memory)",
    )


def budget_on_cpu(free: int) -> PoolBudget:
    """Return a modest share of the free memory, at most 4 GiB."""
    return PoolBudget(min(int(free * CPU_SHARE), CPU_LIMIT), f"{free} bytes of free memory")


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Sizes that decide how many states there are. `cache_ratio`: as `state_cache_ratio`."""

    state_bytes: int
    max_running: int
    cache_ratio: float
    scratch_bytes: int = 0  # beside all slots (`window_pool`)
    of_sequence: int = ANSWER_SLOTS  # slots of a running sequence


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Numbers of blocks, and of state slots with those that nobody gets; 0: no recurrent layer."""

    num_blocks: int
    num_states: int = 0


def pool_sizes(budget: PoolBudget, bytes_per_block: int, states: StateSizes | None) -> PoolSizes:
    """Divide a budget between blocks and states; raises PoolTooSmall where not one block fits.

    States of running sequences come first, but take no more than RUNNING_PART. The rest is divided
    between KV and cached states by their ratio.
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
    """Count the state slots beside `kv_bytes` of KV, which the operator chose."""
    if states is None:
        return 0
    return _fixed_states(states, budget) + int(kv_bytes * states.cache_ratio) // states.state_bytes


def cache_ratio(given: float, states: SlotLayout | None, token_bytes: int) -> float:
    """Return the bytes of cached states for each byte of KV: `given`, but of windows less.

    They are as large as some tokens of KV, and of no use at more places than prompts part at.
    """
    if not isinstance(states, WindowLayout):
        return given
    return min(given, states.state_bytes / (TOKENS_PER_WINDOW * token_bytes))


def scratch_blocks(batch_tokens: int, max_running: int, block_size: int) -> int:
    """Bound the scratch blocks of a step: those of its prompts, each with more than one token."""
    return batch_tokens // block_size + min(max_running, batch_tokens // 2) + 1


def _fixed_states(states: StateSizes, budget: PoolBudget) -> int:
    """Count the slots of running sequences, at least of one, and those that nobody gets."""
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
    """Count the blocks of the host tier with those for states, or 0. `free`: bytes of free memory.

    Of several ranks each has its part of every block, and as large a `share` of the memory: of the
    operator's number, or of what the machine has free. `state_blocks` as in `below`; of a number of
    tokens, states come beside them.
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
    """Divide a lower tier between KV and cached states, by the ratio that the device has.

    `state_blocks`: blocks whose room a state takes; 0: no layer is recurrent.
    """
    if not state_blocks:
        return PoolSizes(num_blocks)
    states = int(num_blocks * cache_ratio / (1 + cache_ratio)) // state_blocks
    return PoolSizes(num_blocks - states * state_blocks, states)


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
