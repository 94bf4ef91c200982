"""A process started by rank 0: dies with it, ignores signals, dumps no core.

It dies with its parent, stopped or not; when it is over, rank 0 says, and no signal of a terminal.
"""

from __future__ import annotations

import ctypes
import os
import signal

from engine.core_dumps import prevent_core_dumps
from engine.line_writer import log_lines

_PR_SET_PDEATHSIG = 1


def tie_to(parent: int, name: str) -> bool:
    """End this process with `parent`; return whether the parent lives. `name`: of log lines."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return False
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    prevent_core_dumps()
    log_lines(f"%(levelname)s {name}: %(message)s")
    return True
