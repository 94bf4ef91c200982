"""Logs of the processes: lines arrive, and no process waits for a reader."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.system.line_writer import MAX_WAITING

LINES = 5 * MAX_WAITING  # number of lines: about 400 KB, while a pipe holds 64 KB
SET_UP = {
    "gateway": "from gateway.telemetry.logs import set_up_logging; set_up_logging('info')",
    "engine": "from engine.config_argument import begun_with; begun_with([])",
    "rank": "from engine.follower.child import tie_to; tie_to(os.getppid(), 'rank 1')",
}
PROGRAM = f"""
for number in range({LINES}):
    logging.info("line %d of the log is as long as lines of a log are for the most part", number)
os.write(1, b"logged")
sys.stdin.read(1)
logging.info("the last one")
"""


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("whose", SET_UP)
def test_nobody_waits_for_the_reader_of_the_log(whose: str, is_read: bool) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", f"import logging, os, sys\n{SET_UP[whose]}\n{PROGRAM}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    with program:
        assert program.stdout.read(6) == "logged"
        if is_read:
            # reads some lines, so that there is room for the last line
            lines = [next(program.stderr) for _ in range(MAX_WAITING)]
            program.stdin.close()
            lines += program.stderr.readlines()
            assert "the last one" in lines[-1]
            written = sum("of the log is" in line for line in lines)
            dropped = [int(line.split()[1]) for line in lines if "could not be written" in line]
            assert written + sum(dropped) == LINES
        else:
            program.stdin.close()
            assert program.wait(60) == 0, "it ends though nobody reads"
