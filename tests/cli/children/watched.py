"""Watches a fake gateway and a fake engine; says on stdout what an operator would see.

usage: watched.py DIRECTORY DEATHS. A line `pids GATEWAY ENGINE` follows the greeting.
"""

import asyncio
import sys
from pathlib import Path

from cli.supervision.serving_state import ChildName
from cli.supervision.watch import Watch, WatchedChild
from tests.cli.scripts import fake_commands, probe, quick_policy


class StdoutScreen:
    """Prints everything."""

    def say(self, text: str) -> None:
        """A line of the supervisor's own."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def child_says(self, name: ChildName, line: str) -> None:
        """A child's line."""
        self.say(f"{name}| {line}")

    def announce(self) -> None:
        """The greeting."""
        self.say("ready")


def main(directory: Path, deaths: int) -> None:
    """Watch until asked to stop."""
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
