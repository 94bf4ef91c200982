"""A fake gateway that lives until SIGTERM, or until it finds and removes the file `gateway-dies`.

usage: fake_gateway.py DIRECTORY [stubborn | broken]. The gateway writes files in DIRECTORY:
`gateway-starts` (a line for each start), `listens`, and its end in `log`. With `stubborn` it
ignores SIGTERM. With `broken` it cannot start. A gateway that runs when the file `gateway-hangs`
appears stops answering (`scripts.probe`); a gateway that starts later answers.
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
