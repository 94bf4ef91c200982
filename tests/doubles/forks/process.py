"""Forked processes of Ratoon. They also fork the processes that they start."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cli.main import main
from tests.doubles.forks.becoming import become, set_environment, show
from tests.doubles.forks.instead_of_exec import InsteadOfExec
from tests.doubles.forks.server import fork_server


class ForkedProcess:
    """A process with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, run: Callable[..., object], words: Sequence[str], how: tuple[object, ...]
    ) -> None:
        """Start a process that calls `run(words, *how)`. `run` must be a module's function."""
        process = fork_server().Process(target=run, args=(list(words), *how), daemon=True)
        # if a test leaves the process running, other processes can still end
        self._process = process
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end; return its exit status. Raises TimeoutExpired."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process, or do nothing if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def forked_ratoon(words: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkedProcess:
    """Run `ratoon WORDS`. All its processes write to `log`, a file or a terminal."""
    return ForkedProcess(_ratoon, words, (dict(environment), log))


def forked_module(words: Sequence[str], log: Path) -> ForkedProcess:
    """Run `python -m WORDS` in this process's environment."""
    return ForkedProcess(_module, words, (dict(os.environ), log))


def _ratoon(words: list[str], environment: dict[str, str], log: Path) -> None:
    _begin(environment, log)
    show(["ratoon", *words])
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))  # as if an operator allowed core dumps
    sys.argv = ["ratoon", *words]
    main()


def _module(words: list[str], environment: dict[str, str], log: Path) -> None:
    _begin(environment, log)
    become([sys.executable, "-m", *words], [])


def _begin(environment: dict[str, str], log: Path) -> None:
    gc.freeze()  # imported objects stay shared while garbage collection skips them
    said = log if log.is_char_device() else os.devnull
    given = os.open(said, os.O_RDONLY | os.O_NOCTTY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY)
    for place, descriptor in enumerate((given, output, output)):
        os.dup2(descriptor, place)
    os.close(given)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.close(output)
    set_environment(environment)
    InsteadOfExec().install()
