"""A worker that serves nothing: says that it serves, and lives until SIGTERM or its line's end.

usage: fake_worker.py DIRECTORY SEAT. Leaves a file with its process id as name in DIRECTORY; a
file `broken` there lets it end with 7 at once, leaving `broken-PID`.
"""

import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path


def main(directory: Path, seat: dict[str, object]) -> int:
    if (directory / "broken").exists():
        (directory / f"broken-{os.getpid()}").touch()
        return 7
    line = socket.socket(fileno=int(str(seat["line"])))
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == seat["metrics_dir"]
    signals, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    line.send(b"+")
    (directory / str(os.getpid())).touch()
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(signals, selectors.EVENT_READ)
        ready = [key.fileobj for key, _ in selector.select()]
    return 3 if line in ready else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
