"""A disk process killed at any point of a spill leaves right records, or none."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.examples import in_the_zoo
from tests.storage.disk.support.bench import Bench, reads_right
from tests.storage.disk.support.spills import BATCH, SLOTS


@pytest.mark.parametrize("kills", [40, *in_the_zoo(200)])
def test_killed_at_any_point_of_a_spill_every_record_is_right_or_a_miss(
    tmp_path: Path, kills: int
) -> None:
    rng = random.Random(11)
    Bench(tmp_path).close()
    seen: set[int] = set()
    with killed_spills(tmp_path) as spill_and_be_killed:
        for round_ in range(kills):
            spill_and_be_killed(round_ * 1000, rng.randrange(1, 5 * BATCH))
            bench = Bench(tmp_path, num_slots=SLOTS)
            found = bench.records.scan(0)
            assert found.next_slot is None or found.next_slot <= SLOTS
            assert not found.unsound
            for slot, record in found.entries:
                assert reads_right(bench.records, slot, record, record.hits)
                seen.add(record.hits)
            bench.close()
    # Most rounds wrote something, and no round lost blocks of an earlier one.
    assert len({number // 1000 for number in seen}) > kills // 2
    assert len(found.entries) == SLOTS


@contextmanager
def killed_spills(directory: Path) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that runs a spill from a given block on, and kills it at another block."""
    command = [sys.executable, "-m", "tests.storage.disk.support.spills", str(directory)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as spills:

        def spill_and_be_killed(first: int, after: int) -> None:
            assert spills.stdin is not None
            assert spills.stdout is not None
            print(first, after, file=spills.stdin, flush=True)
            assert spills.stdout.readline() == "killed\n"

        yield spill_and_be_killed
    assert spills.returncode == 0
