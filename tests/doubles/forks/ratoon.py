"""`ratoon ...` as a forked process, which starts its processes by forks too."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.main import main
from tests.doubles.forks.becoming import set_environment, show
from tests.doubles.forks.instead_of_exec import InsteadOfExec
from tests.doubles.forks.server import fork_server


class ForkedRatoon:
    """A process by what tests ask of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it with `words` after `ratoon`; its output, and that of others, goes to `log`."""
        how = (list(words), dict(environment), log)
        self._process = fork_server().Process(target=_run, args=how)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """As `poll`."""
        return self.poll()

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended; TimeoutExpired where that takes longer."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("ratoon", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _run(words: list[str], environment: dict[str, str], log: Path) -> None:
    gc.freeze()  # what was imported is shared, as long as nothing looks at it
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for place, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, place)
    os.close(nothing)
    os.close(output)
    set_environment(environment)
    show(["ratoon", *words])
    sys.argv = ["ratoon", *words]
    InsteadOfExec().install()
    main()
