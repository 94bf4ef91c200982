"""`ratoon` commands in separate processes, as operators run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.doubles.forks.process import ForkedProcess, forked_ratoon

RATOON = (sys.executable, "-c", "from cli.main import main; main()")


class Process(Protocol):
    """The methods of a process that tests use."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end; return its exit status."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send a signal to the process."""
        ...

    def kill(self) -> None:
        """Kill the process."""
        ...


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, with `settings` in place of all RATOON_* variables."""
    others = {name: value for name, value in os.environ.items() if "RATOON" not in name}
    return others | dict(settings)


def forked(words: Sequence[str], settings: Mapping[str, str], log: Path) -> ForkedProcess:
    """Start `ratoon WORDS` by a fork, with its modules imported; append its output to `log`."""
    return forked_ratoon(words, environment(settings), log)


def executed(
    words: Sequence[str], settings: Mapping[str, str], log: Path, within: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start `ratoon WORDS` as a program; `within` is a command that runs it, such as `prlimit`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [*within, *RATOON, *words],
            env=environment(settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def printed_by(words: Sequence[str], log: Path) -> str:
    """Run `ratoon WORDS` to its end; return its output. Fails unless its exit status is 0."""
    process = forked(words, {}, log)
    assert process.wait(60) == 0, log.read_text()
    return log.read_text()


@contextmanager
def running(
    words: Sequence[str], settings: Mapping[str, str], log: Path
) -> Iterator[ForkedProcess]:
    """Run a forked process, which is killed at the end."""
    process = forked(words, settings, log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
