"""A script that runs a command and ends it when its parent dies, even by SIGKILL.

This is a script because hooks between fork and exec are unsafe with threads.

usage: python parent_death.py PARENT_PID COMMAND [ARGUMENT ...]

On systems without prctl, the command outlives its parent.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies. Exits if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main(arguments: list[str]) -> None:
    """Have this process die with its parent, even after it execs the command."""
    parent, *command = arguments
    die_with(int(parent))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
