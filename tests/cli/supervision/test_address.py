"""The address file in a server's data directory, read while the server runs and after it was
killed.
"""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.supervision.address import (
    ADDRESS_FILE,
    AnothersFile,
    ServerAddress,
    address_told,
    running_server,
)
from cli.supervision.child import python_environment
from gateway.state.private_file import FileExposed, PrivateFileDamaged

HERE = ServerAddress(url="http://127.0.0.1:1", admin_url="http://127.0.0.1:2", pid=3)
THERE = ServerAddress(url="http://127.0.0.1:4", admin_url="http://127.0.0.1:4", pid=5)
TELL_AND_WAIT = """
import os, sys
from pathlib import Path
from cli.supervision.address import ServerAddress, tell_address

address = ServerAddress(url="http://127.0.0.1:6", admin_url="http://127.0.0.1:7", pid=os.getpid())
file = tell_address(Path(sys.argv[1]), address)
wait = "print('told', flush=True); input()"
if sys.argv[2] == "become":
    os.execv(sys.executable, [sys.executable, "-c", wait])
exec(wait)
"""


@pytest.fixture(params=["stay", "become"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes its address to `tmp_path`, as `ratoon` or as another program."""
    with subprocess.Popen(
        [sys.executable, "-c", TELL_AND_WAIT, str(tmp_path), request.param],
        env=python_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "told\n"
        yield process
        process.kill()


def test_a_server_is_found_while_it_runs(tmp_path: Path) -> None:
    assert running_server(tmp_path) is None
    with address_told(tmp_path, HERE):
        assert running_server(tmp_path) == HERE
        assert stat.S_IMODE((tmp_path / ADDRESS_FILE).stat().st_mode) == 0o600
    assert running_server(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_server_is_stale(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    found = running_server(tmp_path)
    assert found is not None
    assert (found.url, found.pid) == ("http://127.0.0.1:6", other.pid)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / ADDRESS_FILE).exists()
    assert running_server(tmp_path) is None


@pytest.mark.parametrize("ends_first", [HERE, THERE])
def test_of_two_servers_the_last_is_found_and_then_the_one_that_is_left(
    tmp_path: Path, ends_first: ServerAddress
) -> None:
    told = {address: ExitStack() for address in (HERE, THERE)}
    for address, stack in told.items():
        stack.enter_context(address_told(tmp_path, address))
    assert running_server(tmp_path) == THERE
    told.pop(ends_first).close()
    [(left, stack)] = told.items()
    assert running_server(tmp_path) == left
    stack.close()
    assert running_server(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_next_server_removes_the_files_of_killed_ones(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    with address_told(tmp_path, HERE):
        assert running_server(tmp_path) == HERE
    assert running_server(tmp_path) is not None, "the control: it runs"
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert running_server(tmp_path) is None
    with address_told(tmp_path, THERE):
        assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_others_may_change_is_not_followed(tmp_path: Path) -> None:
    with address_told(tmp_path, HERE):
        assert running_server(tmp_path) == HERE, "the control"
        (tmp_path / ADDRESS_FILE).chmod(0o660)
        with pytest.raises(FileExposed):
            running_server(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_followed(tmp_path: Path) -> None:
    with address_told(tmp_path, HERE):
        os.chown(tmp_path / ADDRESS_FILE, 12345, -1)
        with pytest.raises(AnothersFile):
            running_server(tmp_path)


def test_a_damaged_file_is_reported_and_a_place_without_files_is_not(tmp_path: Path) -> None:
    with address_told(tmp_path, HERE):
        (tmp_path / ADDRESS_FILE).write_text("{}")
        with pytest.raises(PrivateFileDamaged):
            running_server(tmp_path)
    assert running_server(tmp_path / "nowhere") is None


def test_a_directory_that_cannot_be_written_is_an_error_that_leaves_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(OSError), address_told(tmp_path / "nowhere", HERE):
        raise AssertionError("the block must not run")
