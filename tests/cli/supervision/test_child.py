import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cli
from cli.supervision import parent_death
from cli.supervision.child import Child, python_command, python_environment

LIMIT_S = 30


async def run(code: str) -> tuple[int, list[str]]:
    """Run a Python program as a child; return its exit status and the lines it printed."""
    lines: list[str] = []
    child = await Child.start([sys.executable, "-I", "-S", "-c", code], lines.append)
    return await asyncio.wait_for(child.wait(), LIMIT_S), lines


async def test_both_outputs_are_read_to_the_end() -> None:
    code = "import sys; print('out', flush=True); sys.stderr.write('err\\nno newline')"
    assert await run(code) == (0, ["out", "err", "no newline"])


async def test_the_exit_status_is_the_commands() -> None:
    assert (await run("raise SystemExit(5)"))[0] == 5
    assert (await run("import os; os.kill(os.getpid(), 9)"))[0] == -9


async def test_lines_may_be_long_and_not_utf8() -> None:
    code = "import sys; sys.stdout.buffer.write(b'x' * 200_000 + b'\\n\\xff\\n')"
    status, lines = await run(code)
    assert status == 0
    assert [len(line) for line in lines] == [200_000, 1]


async def test_a_line_without_end_is_not_kept_for_ever() -> None:
    status, lines = await run("import sys; sys.stdout.write('x' * 3_000_000)")
    assert status == 0
    assert len(lines) > 1
    assert sum(map(len, lines)) == 3_000_000


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not reaped it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended = bool(select.select([pidfd], [], [], LIMIT_S)[0])
    os.close(pidfd)
    return ended


async def test_what_a_child_started_goes_with_it() -> None:
    """End the processes that a child started.

    A grandchild that lived on would keep the pipe open, and `wait` would not return.
    """
    code = (
        "import subprocess, sys;"
        "sleeper = 'import signal; signal.pause()';"
        "print(subprocess.Popen([sys.executable, '-S', '-c', sleeper]).pid)"
    )
    status, lines = await run(code)
    assert status == 0
    assert has_ended(int(lines[0]))


async def test_what_left_the_group_does_not_keep_us_waiting() -> None:
    code = (
        "import subprocess, sys;"
        "sleeper = 'import signal; signal.pause()';"
        "command = [sys.executable, '-S', '-c', sleeper];"
        "print(subprocess.Popen(command, start_new_session=True).pid)"
    )
    status, lines = await run(code)
    assert status == 0
    escaped = int(lines[0])
    os.kill(escaped, signal.SIGKILL)  # raises an error if the process has ended
    assert has_ended(escaped)


async def test_ending_what_is_gone_already_is_fine() -> None:
    child = await Child.start([sys.executable, "-I", "-S", "-c", ""], lambda _: None)
    await asyncio.wait_for(child.wait(), LIMIT_S)
    child.terminate()
    child.kill()
    assert await child.wait() == 0


def test_modules_are_found_from_anywhere(tmp_path: Path) -> None:
    """Import Ratoon's `cli` from any working directory, even if that contains a directory `cli`."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "config.py").write_text("raise SystemExit('the wrong one')")
    command = python_command("engine.config")
    found = subprocess.run(command, cwd=tmp_path, env=python_environment(), timeout=LIMIT_S)
    assert found.returncode == 0


def test_the_same_installation_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    root = str(Path(cli.__file__).parents[1])
    assert python_environment()["PYTHONPATH"] == f"{root}{os.pathsep}/elsewhere"


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "gone"])
def test_nothing_is_run_for_a_parent_that_is_gone(is_there: bool) -> None:
    parent = os.getpid() if is_there else 1 << 22
    command = [sys.executable, "-I", "-S", parent_death.__file__, str(parent), "/bin/true"]
    assert subprocess.run(command, timeout=LIMIT_S).returncode == (0 if is_there else 1)
