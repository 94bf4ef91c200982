"""Lines for a terminal and a pipe, and the greeting's commands, run by a real shell.

A fake `curl` records its arguments.
"""

import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from cli.serving.greeting import HANDBOOK, HANDBOOK_QUESTIONS, chat, greeting
from cli.serving.installation import first_start
from cli.supervision.screen import StderrScreen
from engine.system.line_writer import MAX_WAITING

URL = "http://127.0.0.1:8000"
NOTING_CURL = """#!/bin/sh
for argument; do printf '%s\\0' "$argument"; done >> "$NOTES"
printf '\\n' >> "$NOTES"
"""


def typed(text: str) -> str:
    """Return the greeting's command lines."""
    lines = text.splitlines()
    wanted = (line for line in lines if re.match(r"\. |curl |  -", line))
    return "\n".join(wanted)


def run_in_shell(shell: str, text: str, directory: Path) -> list[list[str]]:
    """Run the lines; return the arguments of each call of curl."""
    tools = directory / "tools"
    tools.mkdir()
    (tools / "curl").write_text(NOTING_CURL)
    (tools / "curl").chmod(0o755)
    notes = directory / "notes"
    subprocess.run(
        [shell, "-eu", "-c", typed(text)],
        env={"PATH": f"{tools}:/usr/bin:/bin", "NOTES": str(notes)},
        cwd="/",
        check=True,
        timeout=30,
    )
    return [line.split("\0")[:-1] for line in notes.read_text().split("\n") if line]


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("model", ["handbook", "owner/it's-a-model"])
@pytest.mark.parametrize("data_dir", [".ratoon", ".", "with space's"])
def test_the_calls_work_as_typed(
    shell: str, model: str, data_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here")
    key = first_start(tmp_path / data_dir, None).demo_key
    monkeypatch.chdir(tmp_path)
    text = greeting(URL, model, Path(data_dir) / "keys.env")
    calls = run_in_shell(path, text, tmp_path)
    assert len(calls) == 2
    for call in calls:
        assert call[:3] == ["-sw", "\\n", f"{URL}/v1/chat/completions"]
        assert call[3:7] == [
            "-H",
            f"Authorization: Bearer {key}",
            "-H",
            "Content-Type: application/json",
        ]
        assert msgspec.json.decode(call[8])["model"] == model


def test_both_calls_share_the_system_prompt_and_nothing_else(tmp_path: Path) -> None:
    first, second = (
        msgspec.json.decode(chat("handbook", HANDBOOK, question))["messages"]
        for question in HANDBOOK_QUESTIONS
    )
    assert first[0] == second[0] == {"role": "system", "content": HANDBOOK}
    assert first[1] != second[1]


def test_the_handbook_answers_what_is_asked() -> None:
    for question in HANDBOOK_QUESTIONS:
        asked = re.fullmatch(r"What is the (.+)\?", question)
        assert asked is not None
        assert f"\nThe {asked[1]} is " in HANDBOOK


def test_the_greeting_says_where_things_are() -> None:
    text = greeting(URL, "handbook", Path(".ratoon/keys.env"))
    assert f"handbook at {URL}/v1" in text
    assert "The keys are in .ratoon/keys.env" in text
    assert f"\n. {Path.cwd()}/.ratoon/keys.env\n" in text
    for command in ("chat", "status", "top"):
        assert f"/ratoon {command} --data-dir {Path.cwd()}/.ratoon\n" in text


def test_the_first_greeting_says_what_was_made() -> None:
    keys = Path(".ratoon/keys.env")
    assert "This first start made .ratoon, " in greeting(URL, "handbook", keys, created=True)
    assert "first start" not in greeting(URL, "handbook", keys)


def test_a_record_in_json_goes_to_standard_output_as_it_is(
    capfd: pytest.CaptureFixture[str],
) -> None:
    screen = StderrScreen("loading", "hello")
    record = '{"time":"2026-11-23T20:16:14Z","status":200}'
    screen.child_says("gateway", record)
    screen.child_says("gateway", "time=2026-11-23T20:16:14Z status=200")
    screen.close()
    told = capfd.readouterr()
    assert told.out == f"{record}\n"
    assert told.err.splitlines()[-1] == "gateway| time=2026-11-23T20:16:14Z status=200"


def test_a_pipe_gets_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    screen = StderrScreen("loading tiny", "hello")
    screen.child_says("engine", "[bold]not markup[/bold]")
    screen.say("the engine is back")
    screen.announce()
    screen.close()
    printed = capfd.readouterr()
    assert printed.out == "hello\n"
    assert printed.err == (
        "ratoon: loading tiny\nengine| [bold]not markup[/bold]\nratoon: the engine is back\n"
    )


def test_a_terminal_gets_the_same_words(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=30, color_system=None)
    screen = StderrScreen("loading tiny", "hello " * 20, console)
    screen.child_says("engine", "[bold]not markup[/bold] " + "x" * 40)
    screen.say("the engine is back")
    screen.announce()
    screen.close()
    said = out.getvalue()
    assert "loading tiny" in said
    assert "engine| [bold]not markup[/bold] " + "x" * 40 in said, "wrapped or read as markup"
    assert "ratoon: the engine is back" in said
    assert capfd.readouterr().out == "hello " * 20 + "\n", "what is copied is not wrapped"


def test_what_the_greeting_reads_is_there_for_programs_too(tmp_path: Path) -> None:
    """Export the keys of keys.env, so that programs started from the same shell have them too."""
    start = first_start(tmp_path, None)
    told = subprocess.run(
        ["sh", "-eu", "-c", f". {start.keys_file}; env"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"RATOON_DEMO_KEY={start.demo_key}\n" in told
    assert f"RATOON_ADMIN_KEY={start.admin_key}\n" in told


FULL = """
import os
from cli.supervision.screen import StderrScreen
screen = StderrScreen("loading", "greeting")
screen.say("nobody can write this")
screen.close()
os.dup2(1, 2)
screen.say("there is room again")
screen.close()
"""


def test_a_log_on_a_full_disk_ends_nothing_and_says_later_what_is_missing() -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-c", FULL],
            stdout=subprocess.PIPE,
            stderr=full,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 0
    told = ran.stdout.decode().splitlines()
    assert told[-2:] == ["ratoon: 2 lines could not be written", "ratoon: there is room again"]


LINES = 5 * MAX_WAITING  # about 400 KB of lines, while a pipe holds 64 KB
UNREAD = f"""
import os, sys
from cli.supervision.screen import StderrScreen
screen = StderrScreen("loading", "greeting")
for number in range({LINES}):
    screen.child_says("engine", f"line {{number}} is as long as lines of a log are {"m" * 30}")
os.write(1, b"said")
sys.stdin.read(1)
screen.close()
"""


@pytest.mark.parametrize("is_read", [True, False])
def test_the_supervisor_waits_for_no_reader(is_read: bool) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", UNREAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    with program:
        assert program.stdout.read(4) == b"said"
        if is_read:
            lines = [next(program.stderr) for _ in range(MAX_WAITING)]
            program.stdin.close()
            lines += program.stderr.readlines()
            written = sum(b"is as long" in line for line in lines)
            dropped = [int(line.split()[1]) for line in lines if b"could not be written" in line]
            assert written + sum(dropped) == LINES
        else:
            program.stdin.close()
            assert program.wait(60) == 0, "it ends though nobody reads"
