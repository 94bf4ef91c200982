"""A worker that reports ten times a second that it serves, until SIGTERM or its parent's end.

usage: fake_worker.py DIRECTORY WORKER_CONFIG. The worker writes a file named by its process
id, with the address of the router process's socket. If a file `broken` exists, the worker only
writes `broken-PID`, and exits with status 7.
"""

import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path


def main(directory: Path, config: dict[str, object]) -> int:
    if (directory / "broken").exists():
        (directory / f"broken-{os.getpid()}").touch()
        return 7
    parent = socket.socket(fileno=int(str(config["parent_socket"])))
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == config["metrics_dir"]
    signals, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    parent.send(b"+")
    (directory / str(os.getpid())).write_text(str(config["router_socket"]))
    with selectors.DefaultSelector() as selector:
        selector.register(parent, selectors.EVENT_READ)
        selector.register(signals, selectors.EVENT_READ)
        while not (ready := [key.fileobj for key, _ in selector.select(0.1)]):
            # select notices in the next round that the parent is gone
            with suppress(BrokenPipeError):
                parent.send(b"+")
    return 3 if parent in ready else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
