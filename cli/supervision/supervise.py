"""`python -m cli.supervision.supervise DESCRIPTOR`: the process that `ratoon serve` becomes.

`ratoon serve` execs this program. So its memory, environment and arguments contain none of the keys
that `ratoon serve` has read or made. The program reads its orders (`Supervised`) from a file
without a name, open under DESCRIPTOR.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from cli.errors import CliError
from cli.supervision.address import ServerAddress, found_by_commands
from cli.supervision.child import python_command, python_environment
from cli.supervision.lines import write_line
from cli.supervision.readiness import probe
from cli.supervision.screen import StderrScreen
from cli.supervision.serving_state import GATEWAY, ChildName, Policy
from cli.supervision.watch import Watch, WatchedChild
from engine.system.core_dumps import prevent_core_dumps


class Supervised(msgspec.Struct, frozen=True, kw_only=True):
    """The commands to run, and how to watch their processes. Contains no secrets."""

    commands: Mapping[ChildName, Sequence[str]]
    readiness_url: str
    policy: Policy
    loading: str
    greeting: str
    data_dir: str
    address: ServerAddress
    directory: str  # the sockets' directory, locked by this process and removed at the end


def become_supervisor(supervised: Supervised) -> NoReturn:
    """Replace this process by the supervisor, which keeps the process id."""
    with tempfile.TemporaryFile() as file:
        file.write(msgspec.json.encode(supervised))
        file.flush()
        os.set_inheritable(file.fileno(), True)
        command = python_command("cli.supervision.supervise", str(file.fileno()))
        os.execve(command[0], command, python_environment())


def main(arguments: Sequence[str]) -> int:
    """Supervise until a signal ends it, and return the exit status."""
    prevent_core_dumps()
    supervised = _told(int(arguments[0]))
    with _removed_at_end(supervised.directory):
        try:
            _supervise(supervised)
        except CliError as error:
            if error.message:
                write_line(f"ratoon: {error.message}")
            return error.exit_code
    return 0


def _told(descriptor: int) -> Supervised:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return msgspec.json.decode(file.read(), type=Supervised)


@contextmanager
def _removed_at_end(directory: str) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _supervise(supervised: Supervised) -> None:
    engines = [name for name in supervised.commands if name != GATEWAY]
    watched = WatchedChild(
        commands=supervised.commands,
        probe=partial(probe, supervised.readiness_url, engines),
        policy=supervised.policy,
    )
    screen = StderrScreen(supervised.loading, supervised.greeting)
    try:
        with found_by_commands(Path(supervised.data_dir), supervised.address):
            asyncio.run(Watch(watched, screen).run())
    finally:
        screen.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
