"""`python -m storage.disk FD`: the disk's process, which serves the inherited socket FD."""

from __future__ import annotations

import signal
import socket
import sys

from storage.disk.serving import serve
from storage.disk.wire import Channel


def main(argv: list[str]) -> int:
    """Serve the engine at the socket's other end, and return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(argv[1])) as end:
        return serve(Channel(end))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
