"""Engines of these tests in their own processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.forks.process import ForkedProcess, forked_module
from tests.doubles.waiting import wait_for

READY = "ready"
WITHIN_S = 120.0


@contextmanager
def apart(module: str, log: Path, *arguments: str) -> Iterator[ForkedProcess]:
    """Run a module of `tests.seams.exchange`, and yield its process once `log` says READY."""
    process = forked_module([f"tests.seams.exchange.{module}", *arguments], log)
    try:
        line(log, READY)
        yield process
    finally:
        process.kill()
        process.wait()


def line(log: Path, begins: str) -> str:
    """Wait for a complete line of the log that begins with this text; return it."""
    found: list[str] = []

    def is_there() -> bool:
        text = log.read_text() if log.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        found.extend(one for one in whole if one.startswith(begins))
        return bool(found)

    wait_for(is_there, WITHIN_S)
    return found[0]
