"""Two ranks give the tokens of one rank, under sharing, preemption, eviction and loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.execution.runner import ModelRunner
from engine.link.event_messages import Tokens
from engine.link.messages import SamplingParams
from engine.ranks.runner import RanksRunner
from engine.sequences.token_constraint import ConstraintOf
from tests.doubles.constraints import Allows
from tests.engine.rigs.checkpoints import RECIPES, VOCAB_SIZE, Checkpoint, make_checkpoint
from tests.engine.rigs.hand_driven import EVERY_WISH
from tests.engine.rigs.ranks import ThreadRanks
from tests.seams.support.mix import (
    LONGEST,
    NAMESPACES,
    UNPRESSED,
    Alone,
    Ask,
    alone_on,
    asks,
    run_mix,
)
from tests.seams.support.real_engine import Bounds, RealEngine

PRESSED = Bounds(4, 16, 24, 4, ranks=2)
MIX = [Ask(i % 3, 16 + i, (5, 6, 7), 12, NAMESPACES[i % 2], None) for i in range(12)]


@contextmanager
def engine_of(
    checkpoint: Checkpoint, bounds: Bounds, constraint_of: ConstraintOf | None = None
) -> Iterator[RealEngine]:
    model_dir = str(checkpoint.model_dir)
    with closing(RealEngine(model_dir, bounds, constraint_of=constraint_of)) as engine:
        yield engine


def last_tokens(engine: RealEngine) -> list[Tensor]:
    """Return each rank's table, which has the last sampled token of each batch slot."""
    assert isinstance(engine.ranks, ThreadRanks)
    engine.ranks.catch_up()
    assert isinstance(engine.runner, RanksRunner)
    runners = [engine.runner.own, *(parts.runner for parts in engine.ranks.parts)]
    return [one.last_tokens for one in runners if isinstance(one, ModelRunner)]


def answer(engine: RealEngine, request_id: str) -> tuple[list[int], list[float]]:
    """Return a request's tokens, and the log-probabilities of the chosen ones."""
    told = [event for event in engine.link.events(request_id) if isinstance(event, Tokens)]
    logprobs = [one.chosen for event in told for one in event.logprobs or ()]
    return engine.tokens(request_id), logprobs


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    """Draw pool sizes, at least the need of one request, with and without host memory."""
    max_running = draw(st.integers(1, 5))
    return Bounds(
        num_blocks=-(-LONGEST // 16) + draw(st.integers(0, 6)),
        block_size=16,
        max_batch_tokens=max_running + draw(st.integers(0, 40)),
        max_running=max_running,
        overlap_scheduling=draw(st.booleans()),
        host_blocks=draw(st.sampled_from([0, 8])),
        ranks=2,
    )


@settings(max_examples=8, derandomize=True)
@given(bounds=bounds(), mix=st.lists(asks, min_size=2, max_size=8))
def test_any_mix_under_any_pressure(
    checkpoint: Checkpoint, alone: Alone, bounds: Bounds, mix: list[Ask]
) -> None:
    with engine_of(checkpoint, bounds) as engine:
        run_mix(engine, mix)
        for number, ask in enumerate(mix):
            assert engine.tokens(str(number)) == alone(ask)
        first, second = last_tokens(engine)
        assert first.tolist() == second.tolist()
        engine.expect_nothing_left()


def test_all_ranks_have_the_same_tokens_after_many_steps(
    checkpoint: Checkpoint, alone: Alone
) -> None:
    """The mixes cause preemption, eviction and loads."""
    with engine_of(checkpoint, replace(PRESSED, host_blocks=8)) as engine:
        run_mix(engine, MIX)
        stats = engine.core.stats()
        assert stats.preemptions > 0
        assert stats.windows["all"].hit_tokens > 0
        assert engine.core.components.copies.ways, "blocks were copied"
        assert len(engine.steps) > 50
        first, second = last_tokens(engine)
        assert first.tolist() == second.tolist()
        assert first.any(), "the control: some were sampled"
        assert [engine.tokens(str(n)) for n in range(12)] == [alone(ask) for ask in MIX]


@pytest.mark.parametrize(("name", "ranks"), [("llama-biases", 2), ("qwen3-moe", 4)])
def test_of_other_models(name: str, ranks: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With four ranks, each KV head is on two ranks."""
    made = make_checkpoint(RECIPES[name], tmp_path_factory.mktemp(name))
    alone = alone_on(made.model_dir)
    with engine_of(made, replace(PRESSED, ranks=ranks, host_blocks=8)) as engine:
        run_mix(engine, MIX)
        first, *others = last_tokens(engine)
        assert len(others) == ranks - 1
        assert all(other.tolist() == first.tolist() for other in others)
        assert [engine.tokens(str(n)) for n in range(12)] == [alone(ask) for ask in MIX]


def test_in_fp8_two_ranks_give_cached_what_they_give_uncached(checkpoint: Checkpoint) -> None:
    """Each rank quantises only its part, so results differ from those of one rank."""
    fp8 = replace(UNPRESSED, quantization="fp8", kv_dtype="fp8", ranks=2)
    expected = []
    with engine_of(checkpoint, fp8) as engine:
        for number, ask in enumerate(MIX):
            name = str(number)
            engine.submit(name, ask.prompt, ask.sampling, namespace=ask.namespace, use_cache=False)
            engine.run()
            expected.append(engine.tokens(name))
    pressed = replace(fp8, num_blocks=4, max_batch_tokens=24, max_running=4, host_blocks=8)
    with engine_of(checkpoint, pressed) as engine:
        run_mix(engine, MIX)
        assert engine.core.stats().windows["all"].hit_tokens > 0
        assert [engine.tokens(str(n)) for n in range(12)] == expected


def test_every_way_to_sample_is_rank_0s_alone(checkpoint: Checkpoint) -> None:
    """Filters, penalties, biases, log-probabilities and masks run together in each step."""
    expect_every_way_to_sample(checkpoint, ranks=2)


def expect_every_way_to_sample(checkpoint: Checkpoint, ranks: int = 1, stages: int = 1) -> None:
    """Check that every way to sample gives the same results with these ranks and stages."""
    wishes = [*EVERY_WISH, SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)]

    def constraint_of(wish: SamplingParams, flow: str) -> Allows | None:
        del flow
        return Allows(range(50, 90), VOCAB_SIZE) if wish.ignore_eos else None

    found = []
    alone = Bounds(64, 16, 64, 8)
    for bounds in (alone, replace(alone, ranks=ranks, stages=stages)):
        with engine_of(checkpoint, bounds, constraint_of) as engine:
            for number, wish in enumerate(wishes):
                prompt = range(5, 25 + number)
                engine.submit(str(number), prompt, wish, namespace=NAMESPACES[0])
            engine.run()
            found.append([answer(engine, str(number)) for number in range(len(wishes))])
            if bounds.ranks == 2 and bounds.stages == 1:
                first, second = last_tokens(engine)
                assert first.tolist() == second.tolist()
    (one, two) = found
    assert [tokens for tokens, _ in one] == [tokens for tokens, _ in two]
    assert set(one[-1][0]) <= set(range(50, 90)), "the control: there was a mask"
    for (_, expected), (_, logprobs) in zip(one, two, strict=True):
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
    assert any(len(logprobs) for _, logprobs in one), "the control: some were reported"
