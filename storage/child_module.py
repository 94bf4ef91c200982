"""The start of a child process that runs a module of this code and inherits descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import storage


def start_module(
    module: str, *arguments: str, descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Run `python -m MODULE` in a child, which inherits `descriptors`. Raises OSError.

    The child imports the same code in any directory. It gets its own session, because Ctrl-C would
    otherwise end the child before its parent.
    """
    root = str(Path(storage.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{inherited}" if inherited else root
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
