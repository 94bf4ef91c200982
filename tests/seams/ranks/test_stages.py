"""Pipeline stages give the tokens of one process, with and without ranks that divide layers."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.served.reading import read_model_config
from engine.models.stages import split_model
from engine.ranks.runner import RanksRunner
from engine.ranks.stage_runners import DeferringRunner
from engine.startup.memory.lower_tiers import RANK_PREFIX
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.examples import in_the_zoo
from tests.seams.ranks.test_tiers import DOWN, FURTHER_DOWN, TWO, ask_for, engine_on, found_on
from tests.seams.ranks.test_tokens import MIX, PRESSED, bounds, expect_every_way_to_sample
from tests.seams.support.mix import NAMESPACES, UNPRESSED, Alone, Ask, alone_on, asks, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

STAGES = replace(TWO, ranks=1, stages=2)
SHAPES = [(2, 1), (3, 1), (2, 2)]  # numbers of stages, and of ranks in each stage


def engine_of(checkpoint: Checkpoint, pressing: Bounds) -> RealEngine:
    return RealEngine(str(checkpoint.model_dir), pressing)


@settings(max_examples=8, derandomize=True)
@given(
    pressing=bounds(),
    shape=st.sampled_from(SHAPES),
    drafts=st.booleans(),
    mix=st.lists(asks, min_size=2, max_size=8),
)
def test_any_mix_under_any_pressure(
    checkpoint: Checkpoint,
    alone: Alone,
    pressing: Bounds,
    shape: tuple[int, int],
    drafts: bool,
    mix: list[Ask],
) -> None:
    stages, ranks = shape
    pressing = replace(pressing, stages=stages, ranks=ranks, drafts=drafts)
    with closing(engine_of(checkpoint, pressing)) as engine:
        run_mix(engine, mix)
        for number, ask in enumerate(mix):
            assert engine.tokens(str(number)) == alone(ask)
        engine.expect_nothing_left()


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3.5", *in_the_zoo("llama-biases", "gemma2")])
def test_of_other_models(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The models have own or tied heads, windows, experts, sandwich norms, recurrent layers."""
    made = make_checkpoint(RECIPES[name], tmp_path_factory.mktemp(name))
    alone = alone_on(made.model_dir)
    with closing(engine_of(made, replace(PRESSED, ranks=1, stages=2))) as engine:
        run_mix(engine, MIX)
        assert engine.core.stats().preemptions > 0
        assert [engine.tokens(str(n)) for n in range(12)] == [alone(ask) for ask in MIX]


def test_in_fp8_stages_give_the_tokens_of_one(checkpoint: Checkpoint) -> None:
    """A stage gets whole rows of the residual, with the bits that a norm gives without stages."""
    found = []
    for stages in (1, 2):
        fp8 = replace(UNPRESSED, quantization="fp8", kv_dtype="fp8", stages=stages)
        with closing(engine_of(checkpoint, fp8)) as engine:
            run_mix(engine, MIX)
            found.append([engine.tokens(str(n)) for n in range(12)])
    assert found[0] == found[1]


def test_every_way_to_sample_is_rank_0s_alone(checkpoint: Checkpoint) -> None:
    expect_every_way_to_sample(checkpoint, stages=2)
    expect_every_way_to_sample(checkpoint, ranks=2, stages=2)


def test_rank_0_computes_its_stage_of_a_step_after_others_were_told_the_next(
    checkpoint: Checkpoint,
) -> None:
    """Send the next step before rank 0 computes, so that earlier stages have work meanwhile."""
    with closing(engine_of(checkpoint, Bounds(64, 16, 64, 4, stages=2))) as engine:
        assert isinstance(engine.runner, RanksRunner)
        own = engine.runner.own
        assert isinstance(own, DeferringRunner)
        prompts = [Ask(0, 9 + n, (5,), 8, NAMESPACES[0], None) for n in range(4)]
        for number, ask in enumerate(prompts):
            engine.submit(str(number), ask.prompt, ask.sampling, namespace=ask.namespace)
        engine.step()
        put_off = []
        while not engine.core.is_idle:
            put_off.append(len(own._put_off))
            engine.step()
        assert max(put_off) == 1, "the step that the first stage alone has"
        assert put_off.count(1) > 8
        assert [len(step) for step in engine.steps].count(2) > 8, "half of the four each"
        assert not own._put_off


class TestTiers:
    def test_mixes_move_blocks_and_give_the_same_tokens(
        self, tmp_path: Path, checkpoint: Checkpoint, alone: Alone
    ) -> None:
        mix = [
            Ask(i % 8, 30 + i % 10, (5, 6, i % 7), 12, NAMESPACES[i % 2], None) for i in range(16)
        ]
        pressing = replace(STAGES, num_blocks=6, host_blocks=5, ranks=2)
        with engine_on(checkpoint, pressing, tmp_path) as engine:
            for _ in range(2):
                run_mix(engine, mix)
                assert [engine.tokens(str(n)) for n in range(16)] == [alone(ask) for ask in mix]
                engine.link.sent.clear()
            ways = engine.core.stats().tiers.ways
            moved = {(way.source, way.target): way.blocks for way in ways}
            assert all(moved.get(way) for way in (DOWN, FURTHER_DOWN)), moved
            engine.expect_nothing_left()

    def test_a_restart_is_warm_and_finds_what_all_stages_have(
        self, tmp_path: Path, checkpoint: Checkpoint
    ) -> None:
        disk = tmp_path / "blocks"
        with engine_on(checkpoint, STAGES, disk) as engine:
            tokens = ask_for(engine, "a")
            ask_for(engine, "b")
            engine.core.spill(60.0)
        copy = Path(shutil.copytree(disk, tmp_path / "copy"))
        shutil.rmtree(copy / f"{RANK_PREFIX}1")
        assert found_on(checkpoint, STAGES, copy) == (0, tokens)
        assert found_on(checkpoint, STAGES, disk) == (64, tokens), "the control: with all of them"
        assert found_on(checkpoint, replace(TWO, ranks=2), disk) == (0, tokens)


def test_states_of_all_stages_are_found_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The stages have two recurrent layers and one, but states of equally many blocks."""
    made = make_checkpoint(RECIPES["qwen3.5"], tmp_path_factory.mktemp("hybrid"))
    found = []
    for number, shape in enumerate((STAGES, replace(STAGES, ranks=2), replace(STAGES, stages=1))):
        disk = tmp_path / str(number)
        with engine_on(made, shape, disk) as engine:
            ask_for(engine, "a")
            ask_for(engine, "b")
            engine.core.spill(60.0)
        found.append(found_on(made, shape, disk))
    assert found[0] == found[1] == found[2]
    assert found[0][0] > 0


def test_a_restart_with_another_number_of_stages_is_cold_and_right(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    """The cache is cold even if the last stage has the same layers in both runs."""
    with engine_on(checkpoint, replace(STAGES, stages=3), tmp_path) as engine:
        tokens = ask_for(engine, "a")
        ask_for(engine, "b")
        engine.core.spill(60.0)
    model = read_model_config(checkpoint.model_dir)
    assert split_model(model, 3, "float32")[-2:] == (2, 3)
    assert split_model(model, 2, "float32")[-2:] == (2, 3)
    assert found_on(checkpoint, STAGES, tmp_path) == (0, tokens)
    assert not (tmp_path / f"{RANK_PREFIX}2").exists()
