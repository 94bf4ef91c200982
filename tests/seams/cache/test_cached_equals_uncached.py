"""Cached answers of a real model equal the answers of each prompt alone, without a cache.

Prompts share prefixes, and are chunked, preempted and evicted.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.support.mix import LONGEST, NAMESPACES, Alone, Ask, asks, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    """Draw pools with room for one request or more, so that preemption and eviction are common."""
    block_size = draw(st.sampled_from([16, 32]))
    max_running = draw(st.integers(1, 5))
    return Bounds(
        num_blocks=-(-LONGEST // block_size) + draw(st.integers(0, 6)),
        block_size=block_size,
        max_batch_tokens=max_running + draw(st.integers(0, 40)),
        max_running=max_running,
        overlap_scheduling=draw(st.booleans()),
        graph_tokens=draw(st.sampled_from([0, 2, 64])),
    )


@settings(max_examples=30, derandomize=True)
@given(bounds=bounds(), mix=st.lists(asks, min_size=2, max_size=8))
def test_any_mix_under_any_pressure(
    checkpoint: Checkpoint, alone: Alone, bounds: Bounds, mix: list[Ask]
) -> None:
    engine = RealEngine(str(checkpoint.model_dir), bounds)
    run_mix(engine, mix)
    for number, ask in enumerate(mix):
        assert engine.tokens(str(number)) == alone(ask)
    engine.expect_nothing_left()


@settings(max_examples=10, derandomize=True)
@given(bounds=bounds(), mix=st.lists(asks, min_size=2, max_size=6))
def test_with_a_hash_that_returns_a_constant_every_output_is_right(
    checkpoint: Checkpoint, alone: Alone, bounds: Bounds, mix: list[Ask]
) -> None:
    engine = RealEngine(str(checkpoint.model_dir), bounds, digest=lambda _: b"\0" * 16)
    run_mix(engine, mix)
    for number, ask in enumerate(mix):
        assert engine.tokens(str(number)) == alone(ask)
    engine.expect_nothing_left()


def test_the_mixes_do_reuse_preempt_and_evict(checkpoint: Checkpoint) -> None:
    """Positive control: reuse, preemption and eviction really happen in the tests above."""
    engine = RealEngine(str(checkpoint.model_dir), Bounds(4, 16, 24, 4))
    mix = [Ask(i % 3, 16 + i, (5, 6, 7), 12, NAMESPACES[i % 2], None) for i in range(12)]
    run_mix(engine, mix)
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.windows["all"].hit_tokens > 0
    assert sum(flow.evictions_suffered for flow in stats.flows.values()) > 0


def test_single_flight_computes_a_cold_prefix_once(checkpoint: Checkpoint) -> None:
    engine = RealEngine(str(checkpoint.model_dir), Bounds(64, 16, 64, 8))
    for number in range(6):
        ask = Ask(0, 40, (5 + number,) * 3, 2, NAMESPACES[0], None)
        engine.submit(str(number), ask.prompt, ask.sampling, namespace=ask.namespace)
    engine.run()
    computed = engine.core.stats().windows["all"].computed_tokens
    assert computed == 43 + 5 * (43 - 32)  # the last whole block of the shared tokens ends at 32
