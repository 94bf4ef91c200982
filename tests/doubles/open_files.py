"""How many files this process has open."""

from __future__ import annotations

import gc
import os


def open_files() -> int:
    """Those that only garbage holds open are closed first, so that none goes while one counts."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
