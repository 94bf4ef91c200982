"""The setup of a child process of rank 0: it ends with rank 0, ignores signals, dumps no core."""

from __future__ import annotations

import ctypes
import os
import signal

from engine.system.core_dumps import prevent_core_dumps
from engine.system.line_writer import log_lines

_PR_SET_PDEATHSIG = 1


def tie_to(parent: int, name: str) -> bool:
    """Make this process end when `parent` ends, even while this process is stopped.

    Return False if `parent` has already ended. `name` is the name in log lines.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return False
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    prevent_core_dumps()
    log_lines(f"%(levelname)s {name}: %(message)s")
    return True
