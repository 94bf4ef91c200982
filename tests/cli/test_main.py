import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest
import typer

from cli.main import build_app
from tests.cli.console import Console


def command_names(app: typer.Typer, before: str = "") -> Iterator[str]:
    """The words of every command, those of groups included."""
    yield from (f"{before}{command.name}" for command in app.registered_commands)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from command_names(group.typer_instance, f"{before}{group.name} ")


COMMANDS = [*command_names(build_app())]


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 25
    assert {"serve", "usage", "verify-isolation", "cache evictions", "tenants keys rotate"} < {
        *COMMANDS
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_an_example(command: str, console: Console) -> None:
    printed = console.type(*command.split(), "--help")
    assert printed.status == 0
    assert "Example" in printed.out
    assert any(line.strip().startswith(f"ratoon {command}") for line in printed.out.splitlines()), (
        "the example is not on a line of its own"
    )


@pytest.mark.parametrize("group", ["", "tenants", "tenants keys", "groups", "prefixes", "cache"])
def test_a_group_lists_its_commands_with_a_line_each(group: str, console: Console) -> None:
    printed = console.type(*group.split(), "--help")
    assert printed.status == 0
    below = [c.removeprefix(group).split()[0] for c in COMMANDS if c.startswith(group)]
    for name in below:
        lines = [line.strip("│ ") for line in printed.out.splitlines()]
        assert any(line.startswith(f"{name} ") and len(line.split()) > 3 for line in lines), name


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--port", "0"),
        ("serve", "--port", "many"),
        ("serve", "--dtype", "int3"),
        ("serve", "--block-size", "0"),
        ("serve", "--no-such-flag"),
        ("serve", "--model", "no-such-model"),
        ("engine", "--model", "./nowhere"),
        ("gateway", "--model", "./nowhere"),
        ("bench", "--requests", "0"),
        ("simulate", "no-such-trace.jsonl"),
        ("simulate", "no-such-trace.jsonl", "--policy", "oracle"),
        ("plan", "--model", "./nowhere"),
        ("plan", "--gpu-gib", "0"),
        ("bench", "--url", "localhost:8000", "--key", "k"),
        ("tenants", "list", "--url", "ftp://x", "--admin-key", "k"),
        ("tenants", "list"),
        ("no-such-command",),
    ],
)
def test_a_bad_value_is_reported_without_a_traceback(
    words: tuple[str, ...], console: Console
) -> None:
    printed = console.type(*words)
    assert printed.status == 2
    assert printed.out == ""
    assert printed.err
    assert "Traceback" not in printed.err


def test_a_bad_environment_variable_is_named(console: Console) -> None:
    printed = console.type("serve", env={"RATOON_PORT": "many"})
    assert printed.status == 2
    assert "RATOON_PORT" in printed.err or "--port" in printed.err


def test_the_version_is_the_distributions(console: Console) -> None:
    assert console.type("version").out == f"ratoon {version('ratoon')}\n"


def test_the_command_line_needs_no_torch() -> None:

    code = "import sys, cli.main; sys.exit('torch' in sys.modules or 'fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
