"""The gateway's own log: its lines arrive, and nobody waits for whoever reads them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.telemetry.logs import MAX_WAITING

LINES = 5 * MAX_WAITING  # some 400 KB: a pipe holds 64
PROGRAM = f"""
import logging, os, sys
from gateway.telemetry.logs import set_up_logging
set_up_logging("info", int(sys.argv[1]))
for number in range({LINES}):
    logging.info("line %d of the log is as long as lines of a log are for the most part", number)
os.write(1, b"logged")
sys.stdin.read(1)
logging.info("the last one")
"""


@pytest.mark.parametrize("is_read", [True, False])
def test_nobody_waits_for_the_reader_of_the_log(is_read: bool) -> None:
    reading, writing = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(writing)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[writing],
    )
    os.close(writing)
    assert program.stdin is not None
    assert program.stdout is not None
    with program, os.fdopen(reading) as log:
        assert program.stdout.read(6) == b"logged"
        if is_read:
            lines = [next(log) for _ in range(MAX_WAITING)]  # so that there is room for the last
            program.stdin.write(b"x")
            program.stdin.close()
            lines += log.readlines()
            assert "the last one" in lines[-1]
            written = sum("line" in line and "of the log is" in line for line in lines)
            dropped = [int(line.split()[0]) for line in lines if "were not written" in line]
            assert written + sum(dropped) == LINES
        else:
            program.stdin.close()
            assert program.wait(60) == 0, "it ends though nobody reads"
