"""A forked process equals an executed one, except for its imported modules."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.supervision import parent_death
from cli.supervision.child import python_environment
from tests.doubles.forks.instead_of_exec import InsteadOfExec
from tests.doubles.forks.server import fork_server

TOLD = "tests.doubles.forks.told"
STATUS = 7


def start_both(directory: Path, *, is_tied: bool) -> None:
    """Start a process by `exec`, and another process by the replacement of `exec`."""
    os.chdir(directory)
    logging.basicConfig(level=logging.DEBUG)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    mine = os.pipe()  # the started processes must inherit neither these pipes nor the thread
    kept = os.dup(mine[0])
    for name in ("executed", "forked"):
        if name == "forked":
            InsteadOfExec(modules=[TOLD]).install()
        command = [sys.executable, "-P", "-m", TOLD, f"{directory}/{name}", str(STATUS)]
        tie = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())]
        with open(directory / f"{name}.out", "wb") as out:
            child = subprocess.Popen(
                [*tie, *command] if is_tied else command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[kept],
                env={**python_environment(), "OF": "test"},
                cwd="/",
                start_new_session=True,
            )
        (directory / f"{name}.status").write_text(str(child.wait()))


def told(directory: Path, name: str) -> tuple[dict[str, Any], bool]:
    text = (directory / name).read_text().replace(f"{directory}/{name}", "PLACE")
    told, has_torch = json.loads(text)
    assert (directory / f"{name}.status").read_text() == str(STATUS)
    assert (directory / f"{name}.out").read_text() == "ends\nits log, written as it ends\n"
    return told, has_torch


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied to its parent", "alone"])
def test_what_is_forked_is_as_what_is_executed(tmp_path: Path, is_tied: bool) -> None:
    parent = fork_server().Process(target=start_both, args=(tmp_path,), kwargs={"is_tied": is_tied})
    parent.start()
    parent.join(60)
    assert parent.exitcode == 0
    executed, has_torch = told(tmp_path, "executed")
    forked, forked_has_torch = told(tmp_path, "forked")
    assert (has_torch, forked_has_torch) == (False, True), "the control: one was forked"
    assert forked == executed
