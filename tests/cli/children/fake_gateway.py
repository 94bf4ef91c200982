"""Lives until SIGTERM, or until the file `gateway-dies` is there.

usage: fake_gateway.py DIRECTORY [stubborn]. Notes its end in DIRECTORY/log; a stubborn one does not
mind SIGTERM.
"""

import signal
import sys
from pathlib import Path


def main(directory: Path, stubborn: bool) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    sys.stdout.write("gateway listens\n")
    sys.stdout.flush()
    (directory / "listens").touch()
    while signal.sigtimedwait({signal.SIGTERM}, 0.02) is None or stubborn:
        if (directory / "gateway-dies").exists():
            return 7
    with (directory / "log").open("a") as log:
        log.write("gateway stops\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "stubborn" in sys.argv[2:]))
