"""Write to FILE how this process was started: `python -m tests.doubles.forks.told FILE STATUS`."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import signal
import sys
from pathlib import Path

from tests.doubles.forks.becoming import open_descriptors

UP_TO_31 = (1 << 31) - 1  # higher signal numbers are libc's own, for threads


def what_i_am() -> dict[str, object]:
    """Return all that a program can see of how it was started, except process id and modules."""
    status = Path("/proc/self/status").read_text().splitlines()
    command = Path("/proc/self/cmdline").read_text()
    return {
        "name": __name__,
        "argv": sys.argv[1:],
        "command": [command.rstrip("\0").split("\0"), sys.orig_argv],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "parent": os.getppid(),
        "leads": os.getpid() in (os.getsid(0), os.getpgid(0)),
        "descriptors": {one: os.readlink(f"/proc/self/fd/{one}") for one in (0, 1, 2)},
        "open": open_descriptors(),
        "signals": [
            (name, int(mask, 16) & UP_TO_31)
            for name, _, mask in (line.partition(":") for line in status)
            if name in ("SigIgn", "SigCgt", "SigBlk")
        ],
        "handlers": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "logging": [str(logging.root.handlers), logging.root.level],
        "unbuffered": [getattr(one, "write_through") for one in (sys.stdout, sys.stderr)],  # noqa: B009
    }


if __name__ == "__main__":
    told = json.dumps([what_i_am(), "torch" in sys.modules])
    Path(sys.argv[1]).write_text(told)
    shown = logging.StreamHandler(sys.stdout)
    at_the_end = logging.handlers.MemoryHandler(10, logging.CRITICAL, shown)
    logging.root.addHandler(at_the_end)
    logging.warning("its log, written as it ends")
    print("ends")  # noqa: T201
    sys.exit(int(sys.argv[2]))
