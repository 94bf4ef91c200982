"""Real weights, real KV: whatever is shared, chunked, preempted or evicted, the tokens are those
that the same prompt gives alone, with the cache off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import SamplingParams
from prefix_cache.namespace import Namespace
from tests.engine.checkpoints import VOCAB_SIZE, Checkpoint
from tests.seams.real_engine import Bounds, RealEngine

NAMESPACES = (Namespace(b"a" * 16), Namespace(b"b" * 16))
LONGEST = 40 + 12 + 12
COMMON = tuple((7 * i * i + 3) % (VOCAB_SIZE - 10) + 5 for i in range(40))
UNPRESSED = Bounds(num_blocks=64, block_size=16, max_batch_tokens=128, max_running=1)


@dataclass(frozen=True)
class Ask:
    """One request of a mix."""

    at_step: int
    shared: int
    private: tuple[int, ...]
    max_tokens: int
    namespace: Namespace
    seed: int | None  # None: greedy

    @property
    def prompt(self) -> tuple[int, ...]:
        return COMMON[: self.shared] + self.private

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=0.0 if self.seed is None else 0.8,
            seed=self.seed,
            ignore_eos=True,
        )


asks = st.builds(
    Ask,
    at_step=st.integers(0, 8),
    shared=st.integers(1, 40),
    private=st.lists(st.integers(5, 8), max_size=12).map(tuple),
    max_tokens=st.integers(1, 12),
    namespace=st.sampled_from(NAMESPACES),
    seed=st.none() | st.integers(0, 3),
)


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    """Pools from what one request needs upwards, so that preemption and eviction are the rule."""
    block_size = draw(st.sampled_from([16, 32]))
    max_running = draw(st.integers(1, 5))
    return Bounds(
        num_blocks=-(-LONGEST // block_size) + draw(st.integers(0, 6)),
        block_size=block_size,
        max_batch_tokens=max_running + draw(st.integers(0, 40)),
        max_running=max_running,
        steps_ahead=draw(st.integers(0, 1)),
        graph_tokens=draw(st.sampled_from([0, 2, 64])),
    )


Alone = Callable[[Ask], list[int]]


@pytest.fixture(scope="session")
def alone(checkpoint: Checkpoint) -> Alone:
    """What a prompt gives by itself, nothing reused and nothing else running."""
    engine = RealEngine(str(checkpoint.model_dir), UNPRESSED)
    number = 0

    @cache
    def tokens(ask: Ask) -> list[int]:
        nonlocal number
        number += 1
        engine.submit(
            f"alone-{number}",
            ask.prompt,
            ask.sampling,
            namespace=NAMESPACES[0],
            use_cache=False,
        )
        engine.run()
        assert engine.finished(f"alone-{number}").cached_tokens == 0
        return engine.tokens(f"alone-{number}")

    return tokens


def run_mix(engine: RealEngine, mix: list[Ask]) -> None:
    for step in range(9):
        for number, ask in enumerate(mix):
            if ask.at_step == step:
                engine.submit(str(number), ask.prompt, ask.sampling, namespace=ask.namespace)
        engine.step()
    engine.run()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(bounds=bounds(), mix=st.lists(asks, min_size=2, max_size=8))
def test_any_mix_under_any_pressure(
    checkpoint: Checkpoint, alone: Alone, bounds: Bounds, mix: list[Ask]
) -> None:
    engine = RealEngine(str(checkpoint.model_dir), bounds)
    run_mix(engine, mix)
    for number, ask in enumerate(mix):
        assert engine.tokens(str(number)) == alone(ask)
    engine.expect_nothing_left()


@settings(max_examples=20, deadline=None, derandomize=True)
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
    """The control: what the tests above put under pressure really happens."""
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
    assert computed == 43 + 5 * (43 - 32)  # the shared tokens' last whole block ends at 32
