"""A fake engine that dies DEATHS times, and then is ready until SIGTERM or SIGUSR1.

usage: fake_engine.py DIRECTORY DEATHS [STATUS]. The engine writes files in DIRECTORY: `starts` (a
line for each start), `ready` while it is ready, and `log`.
"""

import signal
import sys
from pathlib import Path


def main(directory: Path, deaths: int, status: int = 7) -> int:
    ends = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    starts = directory / "starts"
    with starts.open("a") as file:
        file.write("start\n")
    if len(starts.read_text().splitlines()) <= deaths:
        sys.stderr.write("no such model\n")
        return status
    (directory / "ready").touch()
    asked = signal.sigwait(ends)
    (directory / "ready").unlink()
    with (directory / "log").open("a") as log:
        log.write("engine stops\n" if asked == signal.SIGTERM else "engine drains\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
