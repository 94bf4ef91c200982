"""Recurrent states and freed windows: in every tier, each rank has its part of every state."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from engine.sequences.sequence import Sequence
from engine.startup.memory.lower_tiers import RANK_PREFIX
from engine.startup.warm_up import warm_up
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.engine.rigs.checkpoints import RECIPES, VOCAB_SIZE, Checkpoint, make_checkpoint
from tests.examples import in_the_zoo
from tests.seams.ranks.test_tokens import MIX, engine_of, last_tokens
from tests.seams.support.mix import NAMESPACES, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

PRESSED = Bounds(4, 16, 24, 4, host_blocks=256, ranks=2)
ROOMY = Bounds(16, 16, 64, 2, ranks=2)
PROMPT = tuple((11 * i * i + 5) % 50 + 5 for i in range(70))
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
SHORT = [replace(ask, max_tokens=9) for ask in MIX]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *(("qwen3.5-moe", 2), ("gpt-oss", 2)),
        *in_the_zoo(("qwen3.5-moe", 4), ("nemotron-h", 2), ("gemma3", 2)),
    ],
)
def test_any_reuse_gives_the_tokens_of_one_rank(
    name: str, ranks: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = make_checkpoint(RECIPES[name], tmp_path_factory.mktemp(name))
    alone = alone_on(made.model_dir)
    with engine_of(made, replace(PRESSED, ranks=ranks)) as engine:
        run_mix(engine, SHORT)
        first, *others = last_tokens(engine)
        assert len(others) == ranks - 1
        assert all(other.tolist() == first.tolist() for other in others)
        assert [engine.tokens(str(n)) for n in range(12)] == [alone(ask) for ask in SHORT]
        stats = engine.core.stats()
        assert stats.states.hits > 0
        assert stats.preemptions > 0
        engine.expect_nothing_left()


@pytest.fixture(scope="module", params=["qwen3.5", "gemma3"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_checkpoint(RECIPES[request.param], tmp_path_factory.mktemp(request.param))


def answered(engine: RealEngine, name: str, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    engine.submit(name, prompt, GREEDY, namespace=NAMESPACES[0], loads="always")
    engine.run()
    return engine.tokens(name)


def next_turn(first: list[int]) -> tuple[int, ...]:
    return (*PROMPT, *first, 7, 8, 9)


def test_drafts_change_no_answer(saved: Checkpoint) -> None:
    """Two ranks compute the tokens of a drafted row in order, and continue from the same state."""
    bounds = replace(ROOMY, max_running=12)
    with closing(RealEngine(str(saved.model_dir), bounds)) as engine:
        plain = answered(engine, "plain")

    def follows(sequence: Sequence, most: int) -> list[int]:
        return plain[sequence.num_output :][:most]

    drafts = ScriptedDrafting(follows, VOCAB_SIZE, wrong=0.3)
    with closing(RealEngine(str(saved.model_dir), bounds, drafting=drafts)) as engine:
        assert answered(engine, "drafted") == plain
        assert engine.core.stats().drafts["own"].accepted_tokens > 0
        engine.expect_nothing_left()


def test_a_state_comes_back_from_host_memory(saved: Checkpoint) -> None:
    """Load a state from host memory after states of other requests took its slot on the device."""
    with closing(RealEngine(str(saved.model_dir), replace(ROOMY, host_blocks=256))) as engine:
        first = answered(engine, "first")
        for number in range(12):
            answered(engine, f"other {number}", tuple(range(5 + number, 75 + number)))
        assert answered(engine, "second", next_turn(first)) == alone(saved, next_turn(first))
        assert engine.finished("second").reused.tokens == 80
        assert engine.core.stats().states.loaded > 0


@pytest.mark.parametrize(("lost", "found"), [(False, 80), (True, 0)])
def test_a_restart_finds_states_that_all_ranks_have(
    tmp_path: Path, saved: Checkpoint, lost: bool, found: int
) -> None:
    bounds, disk = replace(ROOMY, disk_bytes=64 << 20), tmp_path / "blocks"
    with closing(RealEngine(str(saved.model_dir), bounds, disk=disk)) as engine:
        first = answered(engine, "first")
        engine.core.spill(60.0)
    if lost:
        shutil.rmtree(disk / f"{RANK_PREFIX}1")
    with closing(RealEngine(str(saved.model_dir), bounds, disk=disk)) as engine:
        assert (warm_up(engine.core.components) > 0) is not lost
        assert answered(engine, "second", next_turn(first)) == alone(saved, next_turn(first))
        assert engine.finished("second").reused.tokens == found


def alone(saved: Checkpoint, prompt: tuple[int, ...]) -> list[int]:
    with closing(RealEngine(str(saved.model_dir), replace(ROOMY, ranks=1))) as engine:
        return answered(engine, "alone", prompt)
