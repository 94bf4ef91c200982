"""A worker that reports that it serves, and lives until SIGTERM or the end of its parent.

usage: fake_worker.py DIRECTORY WORKER_CONFIG. It leaves a file named by its process id there;
with a file `broken` there it exits with status 7 at once and leaves `broken-PID`.
"""

import json
import os
import selectors
import signal
import socket
import sys
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
    (directory / str(os.getpid())).touch()
    with selectors.DefaultSelector() as selector:
        selector.register(parent, selectors.EVENT_READ)
        selector.register(signals, selectors.EVENT_READ)
        ready = [key.fileobj for key, _ in selector.select()]
    return 3 if parent in ready else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
