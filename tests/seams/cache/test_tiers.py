"""With host memory and disk, answers of a real model equal those of each prompt alone, uncached.

Pools are so small that every block is moved.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.link.messages import Loads, SamplingParams
from engine.link.stats.engine_stats import EngineStats
from engine.models.layers.rope import RopeConfig
from engine.startup.fingerprint import BlockOrigin
from engine.startup.warm_up import warm_up
from storage.disk.config import DiskConfig
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.origins import ORIGIN, another, attending
from tests.seams.support.mix import LONGEST, NAMESPACES, Alone, Ask, asks, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

TINY = Bounds(num_blocks=6, block_size=16, max_batch_tokens=64, max_running=3)
PROMPT = tuple((11 * i * i + 5) % 50 + 5 for i in range(70))
DOWN, FURTHER_DOWN, UP = ("device", "host"), ("host", "disk"), ("disk", "device")
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)


def room_for(engine_bounds: Bounds, model_dir: str, blocks: int) -> int:
    """Return the bytes of a disk tier for `blocks` blocks."""
    engine = RealEngine(model_dir, engine_bounds)
    block_bytes = engine.tiers.lower.block_bytes
    config = DiskConfig(
        directory=Path(), max_bytes=1 << 30, block_bytes=block_bytes, fingerprint=b""
    )
    return int((blocks + 2.5) * config.record_bytes / config.high_water)


@pytest.fixture(scope="module")
def disk_bytes(checkpoint: Checkpoint) -> int:
    return room_for(TINY, str(checkpoint.model_dir), 24)


def engine_on(checkpoint: Checkpoint, bounds: Bounds, disk: Path | None = None) -> RealEngine:
    return RealEngine(str(checkpoint.model_dir), bounds, disk=disk)


def ask_for(
    engine: RealEngine, name: str, prompt: tuple[int, ...], loads: Loads = "auto"
) -> list[int]:
    engine.submit(name, prompt, GREEDY, namespace=NAMESPACES[0], loads=loads)
    engine.run()
    return engine.tokens(name)


def settle(engine: RealEngine) -> None:
    """Step until no copies are pending."""
    engine.step()
    while engine.core.components.copies.pending:
        engine.step()
        time.sleep(0.001)


@st.composite
def pressed(draw: st.DrawFn) -> Bounds:
    max_running = draw(st.integers(1, 4))
    return Bounds(
        num_blocks=-(-LONGEST // 16) + draw(st.integers(0, 3)),
        block_size=16,
        max_batch_tokens=max_running + draw(st.integers(0, 40)),
        max_running=max_running,
        overlap_scheduling=draw(st.booleans()),
        graph_tokens=draw(st.sampled_from([0, 2])),
        host_blocks=draw(st.integers(1, 8)),
    )


@settings(max_examples=12, derandomize=True)
@given(bounds=pressed(), mix=st.lists(asks, min_size=3, max_size=8))
def test_any_mix_with_a_host_tier(
    checkpoint: Checkpoint, alone: Alone, bounds: Bounds, mix: list[Ask]
) -> None:
    engine = engine_on(checkpoint, bounds)
    run_mix(engine, mix)
    for number, ask in enumerate(mix):
        assert engine.tokens(str(number)) == alone(ask)
    engine.expect_nothing_left()
    engine.close()


@settings(max_examples=4, derandomize=True)
@given(bounds=pressed(), mix=st.lists(asks, min_size=6, max_size=12))
def test_any_mix_with_all_tiers(
    tmp_path_factory: pytest.TempPathFactory,
    checkpoint: Checkpoint,
    alone: Alone,
    disk_bytes: int,
    bounds: Bounds,
    mix: list[Ask],
) -> None:
    disk = tmp_path_factory.mktemp("blocks")
    engine = engine_on(checkpoint, replace(bounds, disk_bytes=disk_bytes), disk)
    assert engine.tiers.disk is not None
    run_mix(engine, [*mix, *mix])
    for number, ask in enumerate([*mix, *mix]):
        assert engine.tokens(str(number)) == alone(ask)
    engine.expect_nothing_left()
    engine.close()


def flood(engine: RealEngine, rounds: int) -> None:
    """Send other prompts, each twice, to push all earlier blocks to lower tiers."""
    for number in range(rounds):
        other = tuple((number * 13 + 7 * i) % 50 + 5 for i in range(70))
        for time_ in range(2):
            ask_for(engine, f"flood-{number}-{time_}", other)
        settle(engine)


def test_the_mixes_do_move_blocks_every_way(
    tmp_path: Path, checkpoint: Checkpoint, disk_bytes: int
) -> None:
    """Positive control: blocks move to and from both lower tiers, with the right contents."""
    bounds = replace(TINY, host_blocks=5, disk_bytes=disk_bytes)
    engine = engine_on(checkpoint, bounds, tmp_path)
    first = ask_for(engine, "a", PROMPT)
    assert ask_for(engine, "b", PROMPT) == first
    flood(engine, 4)
    assert ask_for(engine, "c", PROMPT, loads="always") == first
    stats = engine.core.stats()
    ways = {(way.source, way.target): way.blocks for way in stats.tiers.ways}
    assert min(ways[way] for way in (DOWN, FURTHER_DOWN, UP)) > 0
    assert engine.finished("c").reused.tiers.disk == 64
    engine.expect_nothing_left()
    engine.close()


def restarted(
    tmp_path: Path, checkpoint: Checkpoint, before: Bounds, after: Bounds
) -> tuple[list[int], list[int], EngineStats]:
    """Return a prompt's answers before a stop and after a start, and the second engine's stats."""
    engine = engine_on(checkpoint, before, tmp_path)
    first = ask_for(engine, "a", PROMPT)
    ask_for(engine, "b", PROMPT)
    engine.core.spill(60.0)
    engine.close()
    engine = engine_on(checkpoint, after, tmp_path)
    warm_up(engine.core.components)
    second = ask_for(engine, "a", PROMPT)
    stats = engine.core.stats()
    engine.close()
    return first, second, stats


def test_a_restart_is_warm(tmp_path: Path, checkpoint: Checkpoint, disk_bytes: int) -> None:
    bounds = replace(TINY, num_blocks=12, disk_bytes=disk_bytes)
    first, second, stats = restarted(tmp_path, checkpoint, bounds, bounds)
    assert first == second
    assert stats.windows["all"].hit_tokens >= 64


def test_another_block_size_finds_nothing(
    tmp_path: Path, checkpoint: Checkpoint, disk_bytes: int
) -> None:
    bounds = replace(TINY, num_blocks=12, disk_bytes=disk_bytes)
    after = replace(bounds, block_size=32, num_blocks=6)
    first, second, stats = restarted(tmp_path, checkpoint, bounds, after)
    assert first == second
    assert stats.windows["all"].hit_tokens == 0


WARM = replace(TINY, num_blocks=12)


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint, disk_bytes: int
) -> Path:
    """Fill a disk with PROMPT under the fingerprint of ORIGIN."""
    disk = tmp_path_factory.mktemp("filled") / "blocks"
    engine = RealEngine(
        str(checkpoint.model_dir),
        replace(WARM, disk_bytes=disk_bytes),
        disk=disk,
        fingerprint=ORIGIN.fingerprint(),
    )
    for name in "ab":
        ask_for(engine, name, PROMPT)
    engine.core.spill(60.0)
    engine.close()
    return disk


CHANGES = {
    "nothing": ORIGIN,  # positive control: PROMPT is found
    "rope": replace(ORIGIN, model=attending(rope=RopeConfig(20000.0))),
    "kv_dtype": replace(
        ORIGIN, kv=replace(ORIGIN.kv, groups=(replace(ORIGIN.kv.groups[0], dtype="float16"),))
    ),
    **{
        field.name: replace(ORIGIN, **{field.name: another(getattr(ORIGIN, field.name))})
        for field in fields(BlockOrigin)
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_the_origin_makes_the_disk_unreachable(
    tmp_path: Path, checkpoint: Checkpoint, filled: Path, disk_bytes: int, change: str
) -> None:
    disk = Path(shutil.copytree(filled, tmp_path / "blocks"))
    engine = RealEngine(
        str(checkpoint.model_dir),
        replace(WARM, disk_bytes=disk_bytes),
        disk=disk,
        fingerprint=CHANGES[change].fingerprint(),
    )
    restored = warm_up(engine.core.components)
    ask_for(engine, "again", PROMPT)
    assert engine.finished("again").reused.tokens == (64 if change == "nothing" else 0)
    assert bool(restored) == (change == "nothing")
    engine.close()


def test_a_host_pool_of_which_all_is_in_use_drops_what_would_go_there(
    checkpoint: Checkpoint, alone: Alone
) -> None:
    engine = engine_on(checkpoint, replace(TINY, host_blocks=1))
    mix = [Ask(i % 5, 40, (5 + i % 4,) * 5, 6, NAMESPACES[i % 2], None) for i in range(24)]
    run_mix(engine, mix)
    for number, ask in enumerate(mix):
        assert engine.tokens(str(number)) == alone(ask)
    tiers = engine.core.stats().tiers
    assert tiers.lower["host"].total == 1
    assert sum(way.blocks for way in tiers.ways if (way.source, way.target) == DOWN) > 0
    # some blocks had no room in lower tiers and were evicted
    assert sum(tiers.evictions["device"].values()) > 0
    engine.expect_nothing_left()
    engine.close()


def test_an_eviction_storm_with_preemption(checkpoint: Checkpoint, alone: Alone) -> None:
    """The pool has room for little more than the longest of the 64 requests."""
    engine = engine_on(
        checkpoint, replace(TINY, num_blocks=5, host_blocks=8, overlap_scheduling=True)
    )
    mix = [
        Ask(i % 9, 10 + i % 31, (5 + i % 4,) * (i % 12), 4 + i % 9, NAMESPACES[i % 2], None)
        for i in range(64)
    ]
    run_mix(engine, mix)
    for number, ask in enumerate(mix):
        assert engine.tokens(str(number)) == alone(ask)
    assert engine.core.stats().preemptions > 0
    engine.expect_nothing_left()
    engine.close()


def test_host_memory_that_is_not_to_be_had_is_done_without(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_on(checkpoint, replace(TINY, host_blocks=1 << 40))
    assert engine.tiers.host is None
    assert "no host tier" in caplog.text
    ask_for(engine, "a", PROMPT)
    engine.close()


def test_a_disk_that_cannot_be_opened_is_done_without(
    tmp_path: Path, checkpoint: Checkpoint, disk_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blocks").write_text("a file, not a directory")
    bounds = replace(TINY, disk_bytes=disk_bytes)
    engine = engine_on(checkpoint, bounds, tmp_path / "blocks")
    assert engine.tiers.disk is None
    assert "no disk tier" in caplog.text
    assert engine.core.stats().tiers.disk is None
    ask_for(engine, "a", PROMPT)
    engine.close()
