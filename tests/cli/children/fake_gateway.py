"""Lives until SIGTERM, or until the file `gateway-dies` is there, which it takes with it.

usage: fake_gateway.py DIRECTORY [stubborn | broken]. Leaves in DIRECTORY: `gateway-starts` (a line
each), `listens`, and its end in `log`. A stubborn one does not mind SIGTERM, a broken one cannot
start. While the file `gateway-hangs` is there it does not answer (`scripts.probe`); a new one does.
"""

import signal
import sys
from pathlib import Path


def main(directory: Path, stubborn: bool, broken: bool) -> int:
    with (directory / "gateway-starts").open("a") as starts:
        starts.write("start\n")
    if broken:
        return 2
    (directory / "gateway-hangs").unlink(missing_ok=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    sys.stdout.write("gateway listens\n")
    sys.stdout.flush()
    (directory / "listens").touch()
    while signal.sigtimedwait({signal.SIGTERM}, 0.02) is None or stubborn:
        if (directory / "gateway-dies").exists():
            (directory / "gateway-dies").unlink()
            (directory / "listens").unlink()
            return 7
    with (directory / "log").open("a") as log:
        log.write("gateway stops\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "stubborn" in sys.argv[2:], "broken" in sys.argv[2:]))
