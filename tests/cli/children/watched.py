"""A supervisor of a fake gateway and a fake engine, which prints what an operator would see.

usage: watched.py DIRECTORY DEATHS. The greeting is followed by a line `pids GATEWAY ENGINE`.
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
