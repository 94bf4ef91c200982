"""Two ranks with host memory and disks: both move blocks as one tree plans, and find them again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from engine.link.query_messages import Flush
from engine.ranks.tiers import RanksDisk
from engine.startup.memory.lower_tiers import RANK_PREFIX
from engine.startup.warm_up import warm_up
from storage.disk.file.done_flushes import read_done
from storage.disk.tier import DiskTier
from tests.doubles.waiting import wait_for
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.ranks import ThreadRanks
from tests.seams.support.mix import NAMESPACES, Alone, Ask, run_mix
from tests.seams.support.real_engine import CLIENT, Bounds, RealEngine

TWO = Bounds(12, 16, 64, 3, disk_bytes=4 << 20, ranks=2)
PROMPT = tuple((11 * i * i + 5) % 50 + 5 for i in range(70))
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
DOWN, FURTHER_DOWN, UP = ("device", "host"), ("host", "disk"), ("disk", "device")


@contextmanager
def engine_on(checkpoint: Checkpoint, bounds: Bounds, disk: Path) -> Iterator[RealEngine]:
    with closing(RealEngine(str(checkpoint.model_dir), bounds, disk=disk)) as engine:
        yield engine


def ask_for(engine: RealEngine, name: str) -> list[int]:
    engine.submit(name, PROMPT, GREEDY, namespace=NAMESPACES[0], loads="always")
    engine.run()
    return engine.tokens(name)


def test_mixes_move_blocks_every_way_and_give_the_same_tokens(
    tmp_path: Path, checkpoint: Checkpoint, alone: Alone
) -> None:
    mix = [Ask(i % 8, 30 + i % 10, (5, 6, i % 7), 12, NAMESPACES[i % 2], None) for i in range(16)]
    bounds = replace(TWO, num_blocks=6, host_blocks=5)
    with engine_on(checkpoint, bounds, tmp_path) as engine:
        for _ in range(2):
            run_mix(engine, mix)
            assert [engine.tokens(str(n)) for n in range(16)] == [alone(ask) for ask in mix]
            engine.link.sent.clear()
        first = ask_for(engine, "first")
        for number in range(8):
            ask = Ask(0, number % 9, tuple(range(5 + number, 60 + number)), 2, NAMESPACES[1], None)
            engine.submit(f"f{number}", ask.prompt, ask.sampling, namespace=ask.namespace)
            engine.run()
        assert ask_for(engine, "again") == first
        ways = engine.core.stats().tiers.ways
        moved = {(way.source, way.target): way.blocks for way in ways}
        assert all(moved.get(way) for way in (DOWN, FURTHER_DOWN)), moved
        engine.expect_nothing_left()


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint
) -> tuple[Path, list[int]]:
    """Write PROMPT to two ranks' disks, and return their directory and the answer to PROMPT."""
    disk = tmp_path_factory.mktemp("filled") / "blocks"
    with engine_on(checkpoint, TWO, disk) as engine:
        tokens = ask_for(engine, "a")
        ask_for(engine, "b")
        engine.core.spill(60.0)
    return disk, tokens


def found_on(checkpoint: Checkpoint, bounds: Bounds, disk: Path) -> tuple[int, list[int]]:
    """Start an engine on these disks. Return how many tokens of PROMPT it finds, and its answer."""
    with engine_on(checkpoint, bounds, disk) as engine:
        warm_up(engine.core.components)
        tokens = ask_for(engine, "again")
        return engine.finished("again").reused.tokens, tokens


def test_a_restart_is_warm(
    tmp_path: Path, checkpoint: Checkpoint, filled: tuple[Path, list[int]]
) -> None:
    disk, tokens = filled
    copy = Path(shutil.copytree(disk, tmp_path / "blocks"))
    assert found_on(checkpoint, TWO, copy) == (64, tokens)


def test_what_one_rank_has_lost_is_computed(
    tmp_path: Path, checkpoint: Checkpoint, filled: tuple[Path, list[int]]
) -> None:
    disk, tokens = filled
    copy = Path(shutil.copytree(disk, tmp_path / "blocks"))
    shutil.rmtree(copy / f"{RANK_PREFIX}1")
    assert found_on(checkpoint, TWO, copy) == (0, tokens)


def test_a_disk_that_was_away_finds_what_the_others_have_kept_unless_all_was_flushed(
    tmp_path: Path, checkpoint: Checkpoint, filled: tuple[Path, list[int]]
) -> None:
    """During one run an empty disk replaced this rank's disk."""
    disk, tokens = filled
    for is_flushed, found in ((False, 64), (True, 0)):
        copy = Path(shutil.copytree(disk, tmp_path / f"flushed-{is_flushed}"))
        rank_1, away = copy / f"{RANK_PREFIX}1", tmp_path / f"away-{is_flushed}"
        rank_1.rename(away)
        with engine_on(checkpoint, TWO, copy) as engine:
            assert warm_up(engine.core.components) == 0
            if is_flushed:
                engine.link.say(Flush(query_id="1"), CLIENT)
                engine.step()
        shutil.rmtree(rank_1)
        away.rename(rank_1)
        assert found_on(checkpoint, TWO, copy) == (found, tokens)


def test_what_one_rank_has_not_flushed_is_flushed_at_its_next_start(
    tmp_path: Path, checkpoint: Checkpoint, filled: tuple[Path, list[int]]
) -> None:
    """The rank died before its disk did a flush that rank 0 has recorded.

    The records of the other ranks are useless without this rank's records.
    """
    disk, _ = filled
    copy = Path(shutil.copytree(disk, tmp_path / "blocks"))
    rank_1 = copy / f"{RANK_PREFIX}1"
    before = Path(shutil.copytree(rank_1, tmp_path / "before"))
    with engine_on(checkpoint, TWO, copy) as engine:
        warm_up(engine.core.components)
        engine.link.say(Flush(query_id="1", flush_id="fl_1"), CLIENT)
        wait_for(lambda: step(engine) and all(map(read_done, (copy, rank_1))), 30)
    shutil.rmtree(rank_1)
    shutil.copytree(before, rank_1)
    with engine_on(checkpoint, TWO, copy) as engine:
        done = engine.core.queries.orders.done_flushes
        assert done.due({"fl_1": None}), "rank 1 has not done it"
        assert warm_up(engine.core.components) == 0
        assert engine.ranks is not None
        theirs = engine.ranks.parts[0].disk
        assert theirs is not None
        wait_for(lambda: step(engine) and theirs.stats.records == 0, 30)
    assert list(read_done(copy)) == ["fl_1"], "the control: rank 0 had noted it"


def test_what_two_ranks_wrote_one_does_not_find_nor_the_reverse(
    tmp_path: Path, checkpoint: Checkpoint, filled: tuple[Path, list[int]]
) -> None:
    """Records that no engine will read are removed from disk."""
    disk, tokens = filled
    copy = Path(shutil.copytree(disk, tmp_path / "blocks"))
    one = replace(TWO, ranks=1)
    assert found_on(checkpoint, one, copy) == (0, tokens)
    assert not (copy / f"{RANK_PREFIX}1").exists()
    with engine_on(checkpoint, one, copy) as engine:
        ask_for(engine, "a")
        ask_for(engine, "b")
        engine.core.spill(60.0)
    assert found_on(checkpoint, one, Path(shutil.copytree(copy, tmp_path / "one"))) == (64, tokens)
    assert found_on(checkpoint, TWO, copy) == (0, tokens)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_one_ranks_disk_loses_the_tier_and_no_token(
    tmp_path: Path, checkpoint: Checkpoint, filled: tuple[Path, list[int]], victim: int
) -> None:
    """The other disk is cleared too, since no flush would reach it."""
    disk, tokens = filled
    copy = Path(shutil.copytree(disk, tmp_path / "blocks"))
    with engine_on(checkpoint, TWO, copy) as engine:
        warm_up(engine.core.components)
        assert engine.core.stats().tiers.disk is not None
        both = engine.core.components.copies.disk
        assert isinstance(both, RanksDisk)
        disks = disks_of(engine)
        wait_for(lambda: step(engine) and all(one.stats.records == 4 for one in disks), 30)
        before = both.generation
        kill(disks[victim])
        wait_for(lambda: step(engine) and both.generation > before, 30)
        wait_for(lambda: step(engine) and disks[1 - victim].stats.records == 0, 30)
        assert ask_for(engine, "again") == tokens
        engine.cache.check_invariants()


def test_a_block_of_slices_that_were_computed_apart_is_found_if_all_are_of_the_same_tokens(
    tmp_path: Path, checkpoint: Checkpoint, filled: tuple[Path, list[int]]
) -> None:
    """A run without one rank's disk leaves such a block, in which that rank's slice is older.

    Every rank computes its slice from the block's tokens alone, so slices from different steps fit.
    A slice of other tokens or another owner is not used, even in the same slot.
    """
    disk, tokens = filled
    others = {64: (PROMPT, NAMESPACES[0]), 0: (PROMPT[::-1], NAMESPACES[0])}
    others[-1] = (PROMPT, NAMESPACES[1])
    small = replace(TWO, max_batch_tokens=16)
    for found, (prompt, namespace) in others.items():
        apart = tmp_path / f"apart-{found}"
        with engine_on(checkpoint, small, apart) as engine:
            for name in "ab":
                engine.submit(name, prompt, GREEDY, namespace=namespace)
                engine.run()
            engine.core.spill(60.0)
        both = Path(shutil.copytree(disk, tmp_path / f"both-{found}"))
        rank_1 = both / f"{RANK_PREFIX}1"
        shutil.rmtree(rank_1)
        shutil.copytree(apart / f"{RANK_PREFIX}1", rank_1)
        assert found_on(checkpoint, TWO, both) == (max(found, 0), tokens)


def step(engine: RealEngine) -> bool:
    engine.step()
    return True


def disks_of(engine: RealEngine) -> list[DiskTier]:
    """Return the disks of rank 0 and rank 1."""
    assert isinstance(engine.ranks, ThreadRanks)
    both = engine.core.components.copies.disk
    assert isinstance(both, RanksDisk)
    disks = [both._own, engine.ranks.parts[0].disk]
    return [one for one in disks if isinstance(one, DiskTier)]


def kill(disk: DiskTier) -> None:
    assert disk._life.process is not None
    disk._life.process.kill()
