"""Latents of a real model in lower tiers: the next turn finds them in the host, or after a restart.

Takes about ten seconds.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import KvDtype
from engine.link.messages import SamplingParams
from engine.startup.warm_up import warm_up
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.seams.support.mix import NAMESPACES
from tests.seams.support.real_engine import Bounds, RealEngine

CHATS, TURN = 3, 70
# The device has room for one and a half chats.
BOUNDS = Bounds(num_blocks=9, block_size=16, max_batch_tokens=64, max_running=1)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
Told = dict[int, tuple[list[int], list[int]]]  # for each chat: its second prompt, and the answer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model_dir: Path = tmp_path_factory.mktemp("latents")
    return make_checkpoint(RECIPES["deepseek-v3"], model_dir)


def prompt(chat: int) -> list[int]:
    return [(7 * chat + 3 * at) % 50 + 1 for at in range(TURN)]


def ask(engine: RealEngine, name: str, ids: list[int], *, use_cache: bool = True) -> list[int]:
    engine.submit(name, ids, GREEDY, namespace=NAMESPACES[0], use_cache=use_cache, loads="always")
    engine.run()
    while engine.core.components.copies.pending:
        engine.step()
    return engine.tokens(name)


def told_by(saved: Checkpoint, bounds: Bounds) -> Told:
    """Return each chat's second prompt, and its answer without a cache."""
    told = {}
    with closing(RealEngine(str(saved.model_dir), bounds)) as engine:
        for chat in range(CHATS):
            said = ask(engine, f"{chat} 1", prompt(chat), use_cache=False)
            longer = [*prompt(chat), *said, 9, 9, 9]
            told[chat] = longer, ask(engine, f"{chat} 2", longer, use_cache=False)
    return told


def expect_told(engine: RealEngine, told: Told) -> None:
    for chat, (longer, follows) in told.items():
        assert ask(engine, f"{chat} 2", longer) == follows
        assert engine.finished(f"{chat} 2").reused.tokens >= 64


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_the_next_turn_finds_its_latents_in_the_host_and_after_a_restart(
    saved: Checkpoint, kv_dtype: KvDtype, tmp_path: Path
) -> None:
    bounds = replace(BOUNDS, kv_dtype=kv_dtype)
    told = told_by(saved, bounds)
    below = replace(bounds, host_blocks=64, disk_bytes=64 << 20)
    with closing(RealEngine(str(saved.model_dir), below, disk=tmp_path)) as first:
        numbers = 48 * (4 if kv_dtype == "auto" else 1) + (2 if kv_dtype == "fp8" else 0)
        assert first.core.components.rates.block_bytes == 3 * 16 * numbers, "keys alone"
        for chat in range(CHATS):
            ask(first, f"{chat} 1", prompt(chat))
        expect_told(first, told)
        ways = {(way.source, way.target) for way in first.core.stats().tiers.ways if way.blocks}
        assert ("host", "device") in ways
        first.core.spill(60.0)
    with closing(RealEngine(str(saved.model_dir), below, disk=tmp_path)) as second:
        assert warm_up(second.core.components) > 0
        expect_told(second, told)
        second.expect_nothing_left()
