"""`ratoon ...` in a process of its own, as operators type it."""

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
    """What tests do with one."""

    @property
    def pid(self) -> int:
        """Its id."""
        ...

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's, with `settings` in place of all RATOON_* variables."""
    others = {name: value for name, value in os.environ.items() if "RATOON" not in name}
    return others | dict(settings)


def forked(words: Sequence[str], settings: Mapping[str, str], log: Path) -> ForkedProcess:
    """Start `ratoon WORDS`, whose modules have been imported; `log` grows by its output."""
    return forked_ratoon(words, environment(settings), log)


def executed(
    words: Sequence[str], settings: Mapping[str, str], log: Path, within: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """The same without any help; `within` is a command that runs it, such as `prlimit`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [*within, *RATOON, *words],
            env=environment(settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def printed_by(words: Sequence[str], log: Path) -> str:
    """Run `ratoon WORDS` to its end, which is a good one; what it has printed."""
    process = forked(words, {}, log)
    assert process.wait(60) == 0, log.read_text()
    return log.read_text()


@contextmanager
def running(
    words: Sequence[str], settings: Mapping[str, str], log: Path
) -> Iterator[ForkedProcess]:
    """A forked one, which is killed at the end."""
    process = forked(words, settings, log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
