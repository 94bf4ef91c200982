"""Start Ratoon's processes by forking the process that starts them; execute all other programs.

A process is forked if it runs Python and the fork server has imported its modules. Other processes
are executed as usual. So is a gateway with several workers, because it imports prometheus_client
with a variable that lets workers share files of counts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from cli.supervision import parent_death
from tests.doubles.forks.becoming import BROKEN, become, end, open_descriptors, set_environment

_HAS_WORKERS = re.compile(r'"workers":(?:[2-9]|[1-9]\d)')  # in the gateway's configuration
MODULES = (
    *("gateway", "gateway.router_process", "engine", "storage.disk"),
    "engine.follower",
    "cli.supervision.supervise",
)


class Command(NamedTuple):
    """A command that a fork runs."""

    words: list[str]
    parent: int | None  # the command ends when this process ends

    def become(self, kept: Sequence[int]) -> NoReturn:
        """Run the command in this process."""
        if self.parent is not None:
            parent_death.die_with(self.parent)
        become(self.words, kept)


def known(words: Sequence[str], modules: Collection[str]) -> Command | None:
    """Return the command `words` if it runs one of `modules`, directly or by `parent_death`."""
    parent = None
    if any(map(_HAS_WORKERS.search, words)):
        return None
    if parent_death.__file__ in words:
        after = list(words).index(parent_death.__file__) + 1
        parent, words = int(words[after]), words[after + 1 :]
    match list(words):
        case [sys.executable, "-m", module, *_] | [sys.executable, _, "-m", module, *_]:
            return Command(list(words), parent) if module in modules else None
    return None


class InsteadOfExec:
    """The replacement of `subprocess`'s `fork_exec` and of `os.execve` in a forked process."""

    def __init__(self, modules: Collection[str] = MODULES) -> None:
        self._modules = modules
        self._fork_exec = vars(subprocess)["_fork_exec"]
        self._execve = os.execve

    def install(self) -> None:
        """Replace both functions, for processes that this process and its children will start."""
        vars(subprocess)["_fork_exec"] = self.fork_exec
        vars(os)["execve"] = self.execve

    def fork_exec(self, words: Sequence[Any], *how: Any) -> int:
        """Start a process; return its id. Takes the arguments of `_posixsubprocess.fork_exec`."""
        command = known([os.fsdecode(word) for word in words], self._modules)
        if command is None:
            started: int = self._fork_exec(words, *how)
            return started
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise both processes would write the buffer
        pid = os.fork()
        if not pid:
            try:
                command.become(_inherited(*how))
            finally:
                end(BROKEN)
        return pid

    def execve(self, path: str, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        """Become another program."""
        command = known(words, self._modules)
        if command is None:
            self._execve(path, list(words), environment)
        set_environment(environment)
        command.become([one for one in open_descriptors() if os.get_inheritable(one)])


def _inherited(
    _executables: Any, _closes: bool, kept: Sequence[int], cwd: Any, environment: Any, *how: Any
) -> list[int]:
    """Set descriptors, session, directory and environment; return the descriptors to keep."""
    stdin, _, _, stdout, _, stderr, _, failed, _, has_session, *_ = how
    for place, descriptor in enumerate((stdin, stdout, stderr)):
        if descriptor != -1:
            os.dup2(descriptor, place)
    if has_session:
        os.setsid()
    if cwd is not None:
        os.chdir(cwd)
    if environment is not None:
        pairs = (os.fsdecode(one).partition("=") for one in environment)
        set_environment({name: value for name, _, value in pairs})
    return [one for one in kept if one != failed]
