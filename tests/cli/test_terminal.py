"""Commands print to an 80-column terminal, and to a file, without cutting any id."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

import pytest

from tests.cli.console import Ratoon
from tests.doubles.forks.process import forked_ratoon
from tests.doubles.gateway.served import MODEL, Served

ROOT = Path(__file__).parents[2]
REQUEST = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}]}}'


@pytest.fixture
def env(gateway: Served) -> dict[str, str]:
    return {
        **{
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")
        },
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "RATOON_URL": gateway.url,
        "RATOON_ADMIN_KEY": gateway.admin_key,
        "RATOON_KEY": gateway.key,
    }


def at_a_terminal(
    words: str, env: dict[str, str], until: str = "", then: Callable[[int, int], Any] | None = None
) -> tuple[int, str]:
    """Run a command at a terminal; return its exit status and the screen's text.

    When `until` appears, call `then` with the process id and the terminal.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    started = forked_ratoon(words.split(), env, Path(os.ttyname(theirs)))
    shown = b""
    try:
        while started.poll() is None or select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536) if select([ours], [], [], 0.05)[0] else b""
            if then is not None and until in _plain(shown):
                then(started.pid, ours)
                then = None
        return started.wait(timeout=60), _plain(shown)
    finally:
        started.kill()
        started.wait()
        os.close(ours)
        os.close(theirs)


def _plain(shown: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r\n", "\n")


def in_a_file(words: str, env: dict[str, str]) -> tuple[int, str]:
    with tempfile.NamedTemporaryFile() as output:
        status = forked_ratoon(words.split(), env, Path(output.name)).wait(60)
        return status, output.read().decode()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--version", "ratoon "),
        ("status", "ready"),
        ("tenants show demo", "no limits"),
        ("tenants list", "enabled"),
        ("tenants keys list demo", "live"),
        ("cache stats", "Prompt tokens"),
        ("top --once", "Engine since its start"),
    ],
)
def test_both_show_the_same_and_cut_nothing(
    ratoon: Ratoon, env: dict[str, str], words: str, expected: str
) -> None:
    [demo] = [one for one in ratoon("tenants list --json").json if one["name"] == "demo"]
    [key, *_] = ratoon("tenants keys list demo --json").json
    for run in (at_a_terminal, in_a_file):
        status, shown = run(words, env)
        assert status == 0
        assert expected in shown
        assert "…" not in shown
        if words.startswith("tenants"):
            assert demo["id"] in shown or "keys" in words
            assert key["id"] in shown or words == "tenants list"
        if run is at_a_terminal:
            assert max(map(len, shown.splitlines())) <= 80


def test_what_is_warm_is_said(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(REQUEST)
    for run in (at_a_terminal, in_a_file):
        status, shown = run(f"cache warm {tmp_path}/request.json", env)
        assert (status, shown.startswith("The prompt is cached.")) == (0, True)


def test_top_is_watched_until_it_is_interrupted(env: dict[str, str]) -> None:
    def interrupt(pid: int, _: int) -> None:
        os.kill(pid, signal.SIGINT)

    status, shown = at_a_terminal("top --interval-s 0.1", env, "Engine in ", interrupt)
    assert status == 0
    assert "generated tokens/s" in shown
    assert "Traceback" not in shown


def test_a_chat_is_typed(env: dict[str, str]) -> None:
    def type_and_end(_: int, terminal: int) -> None:
        os.write(terminal, b"Hello\n/exit\n")

    status, shown = at_a_terminal("chat --max-tokens 4", env, "> ", type_and_end)
    assert status == 0
    assert "prompt tokens" in shown


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("tenants show nobody", "there is no tenant 'nobody'"),
        ("cache warm /no/such/file", "/no/such/file: No such file or directory"),
        ("status --url ftp://here", "ftp://here does not start with http"),
        ("usage --first tomorrow", "is not a day"),
    ],
)
def test_a_mistake_is_one_line(env: dict[str, str], words: str, why: str) -> None:
    status, shown = at_a_terminal(words, env)
    assert status in (1, 2)
    assert why in shown
    assert len(shown.splitlines()) == 1
