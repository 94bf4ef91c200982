"""Whatever happens to the disk of a real engine, every generated token is right.

Pools are so small that prompts come back from the disk. Then the file, its process or the disk is
damaged while the engine runs, and all prompts are asked again, twice. Storage's own tests show how
each fault is reported; here serving continues with right tokens and no leak.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prefix_cache.namespace import Namespace
from storage.disk.stats import DiskState
from storage.disk.tier import DiskTier
from tests.doubles.processes import disk_process
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.cache.test_tiers import GREEDY, TINY, room_for, settle
from tests.seams.support.real_engine import Bounds, RealEngine

PROMPTS = [tuple((number * 13 + 7 * i) % 50 + 5 for i in range(70)) for number in range(6)]
NAMESPACE = Namespace(b"n" * 16)
SOON_S = 20.0
PAGE = 4096


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint) -> list[list[int]]:
    """Return each prompt's answer without a cache."""
    engine = RealEngine(str(checkpoint.model_dir), replace(TINY, num_blocks=64))
    for number, prompt in enumerate(PROMPTS):
        engine.submit(str(number), prompt, GREEDY, namespace=NAMESPACE, use_cache=False)
        engine.run()
    return [engine.tokens(str(number)) for number in range(len(PROMPTS))]


@pytest.fixture
def engine(checkpoint: Checkpoint, tmp_path: Path) -> Iterator[RealEngine]:
    """Make an engine that has written all prompts to disk."""
    model_dir = str(checkpoint.model_dir)
    bounds = Bounds(
        num_blocks=6,
        block_size=16,
        max_batch_tokens=64,
        max_running=3,
        disk_bytes=room_for(TINY, model_dir, 40),
    )
    engine = RealEngine(model_dir, bounds, disk=tmp_path)
    for number, prompt in enumerate(PROMPTS):
        for time_ in range(2):
            ask(engine, f"{number} {time_}", prompt)
            settle(engine)
    yield engine
    engine.close()


def disk_of(engine: RealEngine) -> DiskTier:
    assert engine.tiers.disk is not None
    return engine.tiers.disk


def file_of(engine: RealEngine) -> Path:
    return disk_of(engine).directory / "blocks" / "data.mdb"


def process_of(engine: RealEngine) -> int:
    return disk_process(disk_of(engine).directory)


def ask(engine: RealEngine, name: str, prompt: tuple[int, ...]) -> list[int]:
    """Return a request's tokens. Blocks are loaded from disk even if computing is faster."""
    engine.submit(name, prompt, GREEDY, namespace=NAMESPACE, loads="always")
    engine.run()
    return engine.tokens(name)


def ask_all(
    engine: RealEngine, name: str, expected: list[list[int]], *, settled: bool = True
) -> int:
    """Send every prompt; count the tokens from disk. With `settled`, copies end before the next."""
    from_disk = 0
    for number, prompt in enumerate(PROMPTS):
        assert ask(engine, f"{name} {number}", prompt) == expected[number]
        from_disk += engine.finished(f"{name} {number}").reused.tiers.disk
        if settled:
            settle(engine)
    return from_disk


def overwrite(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change a file in place, so that processes which map it see the change."""
    content = bytearray(path.read_bytes())
    change(content)
    with path.open("r+b") as file:
        file.write(content)


def truncate(engine: RealEngine) -> None:
    os.truncate(file_of(engine), file_of(engine).stat().st_size // 2)


def flip_a_thousand_bits(engine: RealEngine) -> None:
    rng = random.Random(11)

    def flip(content: bytearray) -> None:
        for _ in range(1000):
            content[rng.randrange(2 * PAGE, len(content))] ^= 1 << rng.randrange(8)

    overwrite(file_of(engine), flip)


def put_noise_over_pages(engine: RealEngine) -> None:
    rng = random.Random(12)

    def spoil(content: bytearray) -> None:
        for page in range(2 * PAGE, len(content), PAGE):
            content[page : page + 32] = rng.randbytes(32)

    overwrite(file_of(engine), spoil)


def kill(engine: RealEngine) -> None:
    os.kill(process_of(engine), signal.SIGKILL)


def await_disk(engine: RealEngine) -> None:
    """Step until a disk answers again."""
    disk, give_up = disk_of(engine), time.monotonic() + SOON_S
    while disk.state is not DiskState.UP or not disk.is_answering:
        engine.step()
        assert time.monotonic() < give_up, disk.state


@pytest.mark.parametrize(
    ("harm", "deaths"),
    [
        (truncate, {1}),
        (flip_a_thousand_bits, {0, 1}),  # whether LMDB notices the damage depends on the bits
        (put_noise_over_pages, {0, 1}),
        (kill, {1}),
    ],
)
def test_every_token_is_right_whatever_becomes_of_the_file(
    engine: RealEngine,
    expected: list[list[int]],
    harm: Callable[[RealEngine], None],
    deaths: set[int],
) -> None:
    disk = disk_of(engine)
    harm(engine)
    ask_all(engine, "harmed", expected)
    ask_all(engine, "again", expected)
    await_disk(engine)
    assert disk.stats.failures == disk.stats.quarantines == disk.generation
    assert disk.stats.failures in deaths
    assert disk.stats.lost or disk.stats.failures, "it was not noticed"
    ask_all(engine, "back", expected)
    engine.expect_nothing_left()


@pytest.fixture
def roomy(engine: RealEngine, checkpoint: Checkpoint) -> Iterator[RealEngine]:
    """Make another engine on the disk. All blocks fit its device, so it waits only for reads."""
    engine.close()
    bounds = replace(engine.bounds, num_blocks=80)
    roomy = RealEngine(str(checkpoint.model_dir), bounds, disk=disk_of(engine).directory)
    assert roomy.core.components.copies.restore(0.0) > 12
    yield roomy
    roomy.close()


def test_a_stalled_disk_is_waited_for_once(roomy: RealEngine, expected: list[list[int]]) -> None:
    """The first read misses its deadline. Until the disk answers, all other reads fail at once."""
    disk, process = disk_of(roomy), process_of(roomy)
    os.kill(process, signal.SIGSTOP)
    try:
        assert ask_all(roomy, "stalled", expected, settled=False) == 0
        late = disk.stats.late
        assert 0 < late <= 5  # blocks of the first prompt, all found on disk
        assert roomy.core.stats().failed_loads > 0
    finally:
        os.kill(process, signal.SIGCONT)
    await_disk(roomy)
    settle(roomy)
    ask_all(roomy, "back", expected)
    assert (process_of(roomy), disk.stats.late, disk.stats.failures) == (process, late, 0)
    roomy.expect_nothing_left()


def test_the_disk_that_is_not_stalled_is_read(roomy: RealEngine, expected: list[list[int]]) -> None:
    """Positive control of the test above."""
    assert ask_all(roomy, "read", expected, settled=False) > 3 * 16
    assert (disk_of(roomy).stats.late, roomy.core.stats().failed_loads) == (0, 0)
    roomy.expect_nothing_left()


def test_a_full_disk_refuses_blocks_and_no_request(
    engine: RealEngine, expected: list[list[int]]
) -> None:
    disk, process = disk_of(engine), process_of(engine)
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    # the disk's process may write no byte into any file
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, before[1]))
    assert ask_all(engine, "full", expected) > 0  # reads continue
    for number in range(4):
        for time_ in range(2):
            ask(
                engine,
                f"other {number} {time_}",
                tuple((number + 3 * i) % 50 + 5 for i in range(70)),
            )
            settle(engine)
    assert disk.stats.refused > 0
    resource.prlimit(process, resource.RLIMIT_FSIZE, before)
    ask_all(engine, "back", expected)
    assert ask_all(engine, "from disk", expected) > 0
    assert (process_of(engine), disk.stats.failures) == (process, 0)
    engine.expect_nothing_left()


def test_unharmed_the_prompts_do_come_from_disk(
    engine: RealEngine, expected: list[list[int]]
) -> None:
    """Positive control: prompts are on disk, and an undamaged disk reports no fault."""
    assert ask_all(engine, "first", expected) > 3 * 64
    assert ask_all(engine, "second", expected) > 3 * 64
    stats = disk_of(engine).stats
    assert (stats.lost, stats.late, stats.failures, stats.quarantines) == (0, 0, 0, 0)
    engine.expect_nothing_left()


@contextmanager
def held_reader(directory: Path) -> Iterator[None]:
    """Run another process that holds a read transaction open, so that no page can be reused."""
    holding = (
        "import lmdb, sys; env = lmdb.open(sys.argv[1], max_dbs=4); txn = env.begin(); "
        "txn.get(b'x'); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holding, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"held\n"
        yield
        reader.kill()


def test_a_full_map_and_a_reader_that_holds_it_refuse_blocks_and_no_request(
    engine: RealEngine, expected: list[list[int]]
) -> None:
    disk = disk_of(engine)
    with held_reader(file_of(engine).parent):
        for turn in range(20):
            ask_all(engine, f"held {turn}", expected)
            if disk.stats.refused:
                break
            other = tuple((turn + 3 * i) % 50 + 5 for i in range(70))
            for time_ in range(2):
                ask(engine, f"other {turn} {time_}", other)
                settle(engine)
        assert disk.stats.refused > 0
        ask_all(engine, "full", expected)
    ask_all(engine, "after", expected)
    assert (disk.state, disk.stats.failures) == (DiskState.UP, 0)
    engine.expect_nothing_left()
