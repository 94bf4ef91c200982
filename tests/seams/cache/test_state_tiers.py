"""Recurrent states and freed windows of real models in lower tiers: the next turn starts from them.

Takes about twenty seconds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from engine.config import EngineConfig
from engine.link.messages import SamplingParams
from engine.startup.warm_up import warm_up
from tests.doubles.waiting import wait_for
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.examples import in_the_zoo
from tests.seams.support.mix import NAMESPACES
from tests.seams.support.real_engine import Bounds, RealEngine

BOUNDS = Bounds(num_blocks=96, block_size=16, max_batch_tokens=64, max_running=1, host_blocks=600)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
CHATS = 5
Told = dict[int, tuple[list[int], list[int]]]  # for each chat: its second prompt, and the answer


# A window takes as many bytes as eight blocks.
SIZES = {"qwen3.5": BOUNDS, "gpt-oss": replace(BOUNDS, num_blocks=400, host_blocks=2400)}


@pytest.fixture(scope="module", params=SIZES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model_dir: Path = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(RECIPES[request.param], model_dir)


@pytest.fixture
def sizes(saved: Checkpoint) -> Bounds:
    return SIZES[saved.model_dir.name[:-1]]  # the directory's name is the model's name and a digit


def few_states(config: EngineConfig) -> EngineConfig:
    """Return the config with state slots for one sequence and one or two checkpoints."""
    cache = structs.replace(config.cache, state_cache_ratio=0.05)
    return structs.replace(config, cache=cache)


def prompt(chat: int) -> list[int]:
    return [(7 * chat + 3 * at) % 50 + 1 for at in range(70)]


def ask(engine: RealEngine, name: str, ids: list[int], *, use_cache: bool = True) -> list[int]:
    """Return a request's tokens. It loads blocks from lower tiers even if computing is faster."""
    engine.submit(name, ids, GREEDY, namespace=NAMESPACES[0], use_cache=use_cache, loads="always")
    engine.run()
    while engine.core.components.copies.pending:
        engine.step()
    return engine.tokens(name)


@pytest.fixture(scope="module")
def told(saved: Checkpoint) -> Told:
    """Return each chat's second prompt, and its answer without a cache."""
    engine = RealEngine(str(saved.model_dir), replace(BOUNDS, host_blocks=0))
    told = {}
    for chat in range(CHATS):
        said = ask(engine, f"{chat} 1", prompt(chat), use_cache=False)
        longer = [*prompt(chat), *said, 9, 9, 9]
        told[chat] = longer, ask(engine, f"{chat} 2", longer, use_cache=False)
    engine.close()
    return told


def test_the_next_turn_begins_from_a_state_that_only_the_host_has(
    saved: Checkpoint, told: Told, sizes: Bounds
) -> None:
    engine = RealEngine(str(saved.model_dir), sizes, over=few_states)
    states = engine.core.stats().states
    assert states.total < CHATS + 3
    assert states.lower["host"].total > 2 * CHATS
    assert engine.cache.capacity.tiers.state_blocks > 1
    for chat in range(CHATS):
        ask(engine, f"{chat} 1", prompt(chat))
    assert engine.core.stats().states.evicted > 0
    for chat, (longer, follows) in told.items():
        assert ask(engine, f"{chat} 2", longer) == follows
        assert engine.finished(f"{chat} 2").reused.tokens == 64
    assert engine.core.stats().states.loaded > 0
    engine.expect_nothing_left()
    engine.close()


@pytest.mark.parametrize(
    ("change", "has_host"),
    [
        ("nothing", False),
        ("nothing", True),
        ("records of states are gone", False),
        *in_the_zoo(("records of states are gone", True)),
    ],
)
def test_a_restart_brings_the_states_back(
    saved: Checkpoint,
    told: Told,
    sizes: Bounds,
    change: str,
    tmp_path: Path,
    *,
    has_host: bool,
) -> None:
    """If no states are on disk, prompts are computed again, with right answers."""
    host_blocks = sizes.host_blocks if has_host else 0
    bounds = replace(sizes, host_blocks=host_blocks, disk_bytes=64 << 20)
    first = RealEngine(str(saved.model_dir), bounds, over=few_states, disk=tmp_path)
    for chat in range(CHATS):
        ask(first, f"{chat} 1", prompt(chat))
    first.core.spill(60.0)
    wait_for(lambda: first.core.stats().states.lower["disk"].used > 0, 60)
    first.close()
    second = RealEngine(str(saved.model_dir), bounds, over=few_states, disk=tmp_path)
    if change != "nothing":
        erase_states(second)
    assert warm_up(second.core.components) > 0
    reused = 0
    for chat, (longer, follows) in told.items():
        assert ask(second, f"{chat} 2", longer) == follows
        reused += second.finished(f"{chat} 2").reused.tokens
    assert (reused > 64) == (change == "nothing")
    second.expect_nothing_left()
    second.close()


def erase_states(engine: RealEngine) -> None:
    disk = engine.tiers.disk
    assert disk is not None
    disk.erase([slot for slot, record in disk.scan() if record.state_part == 0])
    wait_for(lambda: all(record.state_part != 0 for _, record in disk.scan()), 60)
