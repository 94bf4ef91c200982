"""`python -m engine.ranks RANK PARENT FD`: one rank, on the socket that it inherits as FD."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys

from engine.core_dumps import prevent_core_dumps
from engine.process import EXIT_BROKEN
from engine.ranks.serving import serve
from storage.disk.wire import Channel

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Follow the process with the id PARENT, which is rank 0, and die with it."""
    rank, parent, descriptor = (int(argument) for argument in arguments)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return EXIT_BROKEN
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 says when it is over
        signal.signal(number, signal.SIG_IGN)
    prevent_core_dumps()
    line = f"%(levelname)s rank {rank}: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=line)
    with socket.socket(fileno=descriptor) as end:
        return serve(Channel(end))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
