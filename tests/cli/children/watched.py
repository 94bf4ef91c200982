"""A supervisor of a fake gateway and a fake engine, which prints the lines that an operator would
see.

usage: watched.py DIRECTORY DEATHS. After the greeting it prints a line `pids GATEWAY ENGINE`.
"""

import asyncio
import sys
from pathlib import Path

from cli.supervision.serving_state import ChildName
from cli.supervision.watch import Watch, WatchedChild
from tests.cli.scripts import fake_commands, probe, quick_policy


class StdoutScreen:
    """A screen that prints every line to standard output."""

    def say(self, text: str) -> None:
        """Print a line of the supervisor."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def child_says(self, name: ChildName, line: str) -> None:
        """Print a line of a child."""
        self.say(f"{name}| {line}")

    def announce(self) -> None:
        """Print the greeting."""
        self.say("ready")


def main(directory: Path, deaths: int) -> None:
    """Supervise the two fakes until a signal asks to stop."""
    watched = WatchedChild(
        commands=fake_commands(directory, deaths=deaths),
        probe=lambda: probe(directory),
        policy=quick_policy(),
        poll_s=0.02,
        rest_s=0.02,
    )
    asyncio.run(Watch(watched, StdoutScreen()).run())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
