"""A process killed at any point of a spill leaves records that are right, or none."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from tests.storage.disk.bench import Bench, reads_right, to_write

KILLS = 100
SLOTS = 40
BATCH = 4


def test_killed_at_100_points_of_a_spill_every_record_is_right_or_a_miss(tmp_path: Path) -> None:
    rng = random.Random(11)
    Bench(tmp_path).close()
    seen: set[int] = set()
    for round_ in range(KILLS):
        _spill_and_be_killed(tmp_path, round_ * 1000, rng.randrange(1, 5 * BATCH))
        bench = Bench(tmp_path, num_slots=SLOTS)
        found = bench.records.scan(0)
        assert found.next_slot is None or found.next_slot <= SLOTS
        assert not found.unsound
        for slot, record in found.entries:
            assert reads_right(bench.records, slot, record, record.hits)
            seen.add(record.hits)
        bench.close()
    # Something was written in most rounds, and what one round wrote the next did not lose.
    assert len({number // 1000 for number in seen}) > KILLS // 2
    assert len(found.entries) == SLOTS


def _spill_and_be_killed(directory: Path, first: int, after: int) -> None:
    """Let a child write blocks of these numbers, and kill it when it is at the `after`th."""
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        _spill(directory, first, telling)
    os.close(telling)
    with open(told, "rb", buffering=0) as reading:
        while after > 0 and (told_now := reading.read(after)):
            after -= len(told_now)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _spill(directory: Path, first: int, telling: int) -> None:
    """Write without end, one byte into the pipe for each block; does not return."""
    try:
        bench = Bench(directory)
        rng = random.Random(first)
        number = first
        while True:
            slots = rng.sample(range(SLOTS), BATCH)
            blocks = []
            for slot in slots:
                blocks.append(to_write(slot, number))
                number += 1
                os.write(telling, b".")
            bench.records.write(blocks)
    finally:
        os._exit(1)
