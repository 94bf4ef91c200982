"""`python -m tests.storage.disk.support.spills DIRECTORY`: disk writers killed at a given block.

For each line "FIRST AFTER" of standard input, a child process writes blocks from number FIRST on,
and is killed at block number AFTER of these; then a line is printed. The child is forked from this
small process: a fork of pytest would copy the page tables of everything that it has imported.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from tests.storage.disk.support.bench import Bench, to_write

SLOTS = 40
BATCH = 4


def main(directory: Path) -> None:
    """Answer every input line with an output line."""
    for line in sys.stdin:
        first, after = map(int, line.split())
        _spill_and_be_killed(directory, first, after)
        print("killed", flush=True)  # noqa: T201


def _spill_and_be_killed(directory: Path, first: int, after: int) -> None:
    """Let a child write blocks from number `first` on, and kill it at its `after`th block."""
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
    """Write blocks for ever, and a byte to the pipe for each; never return."""
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
