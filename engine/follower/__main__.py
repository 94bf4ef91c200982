"""The entry point `python -m engine.follower RANK PARENT FD` of a rank.

FD is the number of an inherited socket, over which the rank gets its first message.
"""

from __future__ import annotations

import socket
import sys

from engine.follower.child import tie_to
from engine.follower.serving import serve
from engine.process import EXIT_BROKEN
from storage.disk.wire import Channel


def main(arguments: list[str]) -> int:
    """Run one rank as a child of the process PARENT, and end when PARENT ends."""
    rank, parent, descriptor = (int(argument) for argument in arguments)
    if not tie_to(parent, f"rank {rank}"):
        return EXIT_BROKEN
    with socket.socket(fileno=descriptor) as end:
        return serve(Channel(end))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
