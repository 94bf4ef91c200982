"""The number of the pool's blocks, computed from sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from engine.config import EngineConfig
from engine.models.errors import PoolTooSmall
from engine.startup.memory.pool_size import (
    CPU_LIMIT,
    OPENING_BYTES,
    PoolBudget,
    PoolSizes,
    StateSizes,
    blocks_ahead,
    blocks_for_tokens,
    budget_on_cpu,
    budget_on_cuda,
    cache_ratio,
    host_blocks,
    host_free_beside_weights,
    pool_sizes,
    state_slots,
)
from storage.layouts.kv_layout import KvGroup, KvLayout
from storage.layouts.window_layout import WindowLayout

GIB = 1024**3
BLOCK = 2 * 1024**2


@pytest.mark.parametrize(("tokens", "blocks"), [(16, 1), (31, 1), (32, 2), (100_000, 6250)])
def test_cache_tokens_are_rounded_down_to_blocks(tokens: int, blocks: int) -> None:
    assert blocks_for_tokens(tokens, 16) == blocks


@pytest.mark.parametrize("tokens", [0, 15])
def test_less_than_a_block_is_too_small(tokens: int) -> None:
    with pytest.raises(PoolTooSmall, match=f"cache_tokens {tokens}"):
        blocks_for_tokens(tokens, 16)


def on_cuda(free: int, weights: int, activations: int) -> int:
    budget = budget_on_cuda(free=free, weights=weights, activations=activations, fraction=0.9)
    return pool_sizes(budget, BLOCK, None).num_blocks


def on_cpu(free: int) -> int:
    return pool_sizes(budget_on_cpu(free), BLOCK, None).num_blocks


def test_cuda_gives_the_fraction_of_what_was_free_before() -> None:
    blocks = on_cuda(124 * GIB, 16 * GIB, 6 * GIB)
    # 0.9 of 140 GiB is 126 GiB, minus 16 for weights and 6 for activations.
    assert blocks == pytest.approx(104 * 512, abs=1)


def test_more_activations_or_weights_leave_fewer_blocks() -> None:
    plain = on_cuda(100 * GIB, 10 * GIB, 0)
    assert on_cuda(100 * GIB, 10 * GIB, GIB) == plain - 512
    assert on_cuda(90 * GIB, 20 * GIB, 0) == plain - 10 * 512


def test_a_model_that_fills_the_device_is_refused() -> None:
    with pytest.raises(PoolTooSmall, match="cpu_offload_gb keeps weights in host memory"):
        on_cuda(GIB, 139 * GIB, GIB)


def test_the_cpu_gives_a_share_and_never_more_than_its_limit() -> None:
    assert on_cpu(8 * GIB) == 1024
    assert on_cpu(1000 * GIB) == CPU_LIMIT // BLOCK
    with pytest.raises(PoolTooSmall):
        on_cpu(BLOCK)


@pytest.mark.parametrize(("num_blocks", "ahead"), [(51_200, 1_024), (4_096, 512), (7, 0)])
def test_blocks_for_two_large_steps_are_kept_free_but_of_a_small_pool_less(
    num_blocks: int, ahead: int
) -> None:
    assert blocks_ahead(num_blocks, 16) == ahead


@pytest.mark.parametrize("gib", [None, 1.5])
def test_ranks_with_unequal_parts_of_a_block_have_as_many_of_them(gib: float | None) -> None:
    config = EngineConfig.of(model_dir="", socket="", host_cache_gib=gib)

    def blocks(own: int) -> int:
        share = Fraction(own, 8)
        return host_blocks(config, own * 4096, on_cuda=True, free=5 * GIB, share=share)

    assert blocks(5) == blocks(3) == blocks(8) > 0


def test_weights_in_host_memory_come_before_the_host_tier() -> None:
    """Give host memory to offloaded weights first, then to the host tier. With two ranks, each has
    its own tier.
    """
    free = 64 * GIB
    plain = EngineConfig.of(model_dir="", socket="")
    kept = EngineConfig.of(model_dir="", socket="", cpu_offload_gb=20.0, tensor_parallel=2)
    assert host_free_beside_weights(plain, free) == free - OPENING_BYTES
    assert host_free_beside_weights(kept, free) == free - OPENING_BYTES - 40 * GIB
    assert host_free_beside_weights(kept, 30 * GIB) == 0


STATE = 64 * 1024**2
FEW = StateSizes(STATE, max_running=4, cache_ratio=0.25)  # 12 states, and the reserved one


def test_states_of_running_sequences_come_first_and_the_rest_is_divided_by_the_ratio() -> None:
    sizes = pool_sizes(PoolBudget(13 * STATE + 10 * GIB, "given"), BLOCK, FEW)
    assert sizes == PoolSizes(num_blocks=8 * 512, num_states=13 + 32)
    without = pool_sizes(PoolBudget(13 * STATE + 10 * GIB, ""), BLOCK, StateSizes(STATE, 4, 0.0))
    assert without == PoolSizes(10 * 512, 13)
    assert pool_sizes(PoolBudget(10 * GIB, ""), BLOCK, None) == PoolSizes(10 * 512, 0)


def test_states_of_running_sequences_take_half_at_most() -> None:
    sizes = pool_sizes(PoolBudget(10 * GIB, "given"), BLOCK, StateSizes(STATE, 256, 0.0))
    assert sizes.num_states == 1 + 80
    assert sizes.num_blocks == (10 * GIB - 81 * STATE) // BLOCK


def test_one_sequence_has_its_states_or_the_pool_is_too_small() -> None:
    one = 4 * STATE + BLOCK
    assert pool_sizes(PoolBudget(one, "given"), BLOCK, StateSizes(STATE, 256, 0.0)).num_states == 4
    with pytest.raises(PoolTooSmall, match="given, 4 states of 67108864 bytes first"):
        pool_sizes(PoolBudget(one - 1, "given"), BLOCK, StateSizes(STATE, 256, 0.0))


def test_beside_chosen_tokens_states_are_counted_by_the_same_rule() -> None:
    assert state_slots(PoolBudget(10 * GIB, ""), 4 * GIB, FEW) == 13 + 16
    assert state_slots(PoolBudget(0, ""), 0, FEW) == 4, "one sequence can always run"
    assert state_slots(PoolBudget(10 * GIB, ""), 4 * GIB, None) == 0


def test_scratch_blocks_come_before_everything_else() -> None:
    budget = PoolBudget(1_000_000, "")
    without = pool_sizes(budget, 100, StateSizes(5_000, 4, 0.25))
    sizes = pool_sizes(budget, 100, StateSizes(5_000, 4, 0.25, scratch_bytes=100_000))
    assert sizes == pool_sizes(PoolBudget(900_000, ""), 100, StateSizes(5_000, 4, 0.25))
    assert sizes.num_blocks < without.num_blocks


def test_of_windows_no_more_are_cached_than_one_for_2048_tokens() -> None:
    kv = KvLayout((KvGroup((0,), 1, 16, "float32", 64),), 16)
    ring = WindowLayout.of(kv, kv.block_bytes)
    token_bytes = kv.token_bytes
    assert ring.state_bytes == 6 * 16 * token_bytes
    assert cache_ratio(0.25, ring, token_bytes) == 96 / 2048
    assert cache_ratio(0.01, ring, token_bytes) == 0.01
    assert cache_ratio(0.25, None, token_bytes) == 0.25
