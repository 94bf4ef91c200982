"""The output of `ratoon serve`, to a terminal or a log: lines and a greeting.

Without a terminal, the supervisor loads no library for output, and does not wait for readers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cli.supervision.serving_state import ChildName
from engine.system.line_writer import LineWriter
from gateway.telemetry.harmless import harmless

if TYPE_CHECKING:
    from rich.console import Console


class StderrScreen:
    """Lines on standard error, and the greeting on standard output.

    `console` is the terminal, if any. The terminal shows a spinner while the model loads.
    """

    def __init__(self, loading: str, greeting: str, console: Console | None = None) -> None:
        self._greeting = greeting
        self._out, self._err = LineWriter(1), LineWriter(2)
        self._console = console or _terminal()
        self._status = self._console.status(loading) if self._console is not None else None
        if self._status is not None:
            self._status.start()
        else:
            self.say(loading)

    def say(self, text: str) -> None:
        self._print(f"ratoon: {text}", "bold")

    def child_says(self, name: ChildName, line: str) -> None:
        """Print a child's line, dimmed, beside the child's name.

        Without a terminal, a line of the JSON access log goes unchanged to standard output, for
        programs.
        """
        if line.startswith("{") and line.endswith("}") and self._console is None:
            self._out.put(harmless(line))
        else:
            self._print(f"{name}| {line}", "dim")

    def announce(self) -> None:
        """Print the greeting in place of the spinner, unwrapped so that it can be copied."""
        self._stop_spinner()
        self._out.put(self._greeting)

    def close(self) -> None:
        """Release the terminal, and wait a moment for lines that are not written yet."""
        self._stop_spinner()
        for lines in (self._err, self._out):
            lines.drain()

    def _stop_spinner(self) -> None:
        if self._status is not None:
            self._status.stop()

    def _print(self, text: str, style: str) -> None:
        line = harmless(text)
        if self._console is None:
            self._err.put(line)
        else:
            self._console.print(line, style=style, soft_wrap=True, markup=False, highlight=False)


def _terminal() -> Console | None:
    if not sys.stderr.isatty():
        return None
    from rich.console import Console  # the library is slow to load

    return Console(stderr=True)
