"""Characters in a server's text that control the terminal are escaped before they are printed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

import cli
from cli.echo import echo
from cli.supervision.screen import StderrScreen
from cli.tables import TableText
from tests.cli.console import Console
from tests.cli.http_double import served
from tests.cli.test_tables import written

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b1m\rgood\u202e"
SPELLED = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b1m\\u000dgood\\u202e"
# the module that escapes text; modules that print text of rich and typer; lines that `harmless` has
# escaped
ALLOWED = {
    "echo.py",
    "help_page.py",
    "listing.py",
    "supervision/lines.py",
    "cluster/actor.py",
    "tables.py",
}


def evil_app() -> web.Application:
    """Return a server that streams an answer to chats and refuses everything else."""

    async def chat(_: web.Request) -> web.Response:
        event = {"choices": [{"delta": {"content": EVIL}}], "usage": None}
        return web.Response(body=b"data: " + web.json_response(event).body + b"\n\n")  # type: ignore[operator]

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": EVIL, "param": EVIL}}, status=400)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_route("*", "/{path:.*}", refuse)
    return app


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(evil_app) as found:
        yield found


@pytest.mark.parametrize(
    "line",
    ["tenants list", "keys list acme", "top --once", "usage", "cache stats", "audit"],
)
def test_an_error_is_spelled(console: Console, url: str, line: str) -> None:
    words = line.replace("keys", "tenants keys").split()
    printed = console.type(*words, env={"RATOON_URL": url, "RATOON_ADMIN_KEY": "k"})
    assert printed.status == 1
    assert printed.err == f"ratoon: {SPELLED}: {SPELLED} (400)\n"


def test_an_answer_is_spelled(console: Console, url: str) -> None:
    env = {"RATOON_URL": url, "RATOON_KEY": "k"}
    printed = console.type("chat", "--served-model", "m", env=env, answer="Hello?\n")
    assert printed.out == f"{SPELLED}\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_is_spelled(is_terminal: bool) -> None:
    table = TableText.of("Tenants", ("name",), [(EVIL,)])
    assert "\\u001b]0;owned" in written(200, table, terminal=is_terminal)
    assert "owned\x07" not in written(200, table, terminal=is_terminal)


def test_a_child_s_line_is_spelled(capfd: pytest.CaptureFixture[str]) -> None:
    screen = StderrScreen("loading", "ready")
    screen.child_says("gateway", EVIL)
    screen.child_says("gateway", f'{{"client_id":"{EVIL}"}}')
    screen.close()
    told = capfd.readouterr()
    assert told.err.splitlines()[-1] == f"gateway| {SPELLED}"
    assert told.out == f'{{"client_id":"{SPELLED}"}}\n'


def test_a_text_without_such_characters_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Print other text unchanged (positive control)."""
    echo("naïve\t日本語 שלום\n\nend")
    assert capsys.readouterr().out == "naïve\t日本語 שלום\n\nend\n"


def test_no_command_has_another_way_out() -> None:
    root = Path(cli.__file__).parent
    found = {
        f"{file.relative_to(root)}:{call.lineno}"
        for file in root.rglob("*.py")
        if str(file.relative_to(root)) not in ALLOWED
        if any(word in (source := file.read_text()) for word in ("print", "echo", "write"))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and _writes(ast.unparse(call.func))
    }
    assert found == set()
    assert _writes("typer.echo"), "the control"


def _writes(function: str) -> bool:
    return function in {"print", "typer.echo", "typer.secho", "click.echo"} or function.startswith(
        ("sys.stdout.w", "sys.stderr.w", "os.write")
    )
