import inspect
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pkgutil import resolve_name

import pytest
import typer
from typer.testing import CliRunner

from cli.commands import COMMANDS as COMMANDS_BY_PANEL
from cli.commands import CommandGroup, Commands, summary_of
from cli.main import build_app
from tests.cli.console import Console


def named(commands: Commands, before: str = "") -> Iterator[str]:
    """Return the words of every command, including those in groups."""
    for name, command in commands.items():
        if isinstance(command, CommandGroup):
            yield from named(command.commands, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def added(app: typer.Typer, before: str = "") -> Iterator[str]:
    """Yield the words of every command of an app."""
    yield from (f"{before}{command.name}" for command in app.registered_commands)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from added(group.typer_instance, f"{before}{group.name} ")


COMMANDS = [name for commands in COMMANDS_BY_PANEL.values() for name in named(commands)]
GROUPS = sorted({name.rpartition(" ")[0] for name in COMMANDS} - {""})
FIRST_WORDS = [name for commands in COMMANDS_BY_PANEL.values() for name in commands]


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 25
    assert {"serve", "usage", "verify-isolation", "cache evictions", "tenants keys rotate"} < {
        *COMMANDS
    }


@pytest.mark.parametrize("words", [None, (), ("--help",), ("no-such-command",), ("--version",)])
def test_without_a_command_the_command_line_has_them_all(words: tuple[str, ...] | None) -> None:
    assert sorted(added(build_app(words))) == sorted(COMMANDS)


@pytest.mark.parametrize("before", [(), ("--",)])
@pytest.mark.parametrize("word", FIRST_WORDS)
def test_a_command_is_all_that_its_command_line_has(word: str, before: tuple[str, ...]) -> None:
    below = [name for name in COMMANDS if name == word or name.startswith(f"{word} ")]
    assert sorted(added(build_app((*before, word, "serve")))) == sorted(below)


def test_a_command_is_listed_by_what_it_says_of_itself() -> None:
    assert summary_of("cli.main:version") == "Print the version."
    limits = inspect.getdoc(resolve_name("cli.operating.tenancy.tenant_limits:limits")) or ""
    assert summary_of("cli.operating.tenancy.tenant_limits:limits") == limits.split("\n\n")[0]


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_a_listing_without_imports_reads_as_one_with_them(group: str) -> None:
    runner, words = CliRunner(), [*group.split(), "--help"]
    listed, imported = (runner.invoke(build_app(known), words) for known in (words, None))
    assert listed.output == imported.output
    assert "Usage" in listed.output


@cache
def app_of_all() -> typer.Typer:
    return build_app()


command_of = cache(typer.main.get_command)  # building an app of all commands takes 0.1 s


@pytest.mark.parametrize(
    "words",
    [
        *((*name.split(), "--help") for name in COMMANDS),
        ("tenants",),
        ("tenants", "--help"),
        ("tenants", "keys"),
        ("tenants", "lst"),
        ("serve", "--no-such-flag"),
        ("serve", "no-such-argument"),
    ],
)
def test_a_command_alone_says_what_it_says_among_all(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.testing._get_command", command_of)
    runner = CliRunner()
    alone = runner.invoke(build_app(words), list(words))
    among_all = runner.invoke(app_of_all(), list(words))
    assert (alone.exit_code, alone.output) == (among_all.exit_code, among_all.output)
    assert alone.output


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
        lines = [line.strip() for line in printed.out.splitlines()]
        assert any(line.startswith(f"{name} ") and len(line.split()) > 3 for line in lines), name


def test_the_panels_are_in_order_and_so_are_their_commands(console: Console) -> None:
    """Keep panels and their commands in order, with groups last in each panel."""
    lines = [line for line in console.type("--help").out.splitlines() if line[2:3] != " "]
    told = [line.strip().split(" ")[0].rstrip(":") for line in lines]
    expected = [
        ["Serve", "serve", "gateway", "engine", "models"],
        ["Operate", "chat", "status", "top", "restart", "usage", "audit", "verify-isolation"],
        ["tenants", "groups", "prefixes", "adapters", "receipts", "cache", "engines", "cluster"],
        ["Measure", "bench", "simulate", "plan", "lint", "version"],
    ]
    panels = [word for word in told if word in (*COMMANDS_BY_PANEL, *FIRST_WORDS)]
    assert panels == [word for row in expected for word in row]


def test_a_misspelt_command_is_compared_with_all(console: Console) -> None:
    printed = console.type("serv")
    assert "Did you mean 'serve'?" in printed.err
    assert "Did you mean 'tenants'?" in console.type("tenant", "list").err


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("ratoon se", ["serve"]),
        ("ratoon tenants keys r", ["revoke", "rotate"]),
        ("ratoon serve --por", ["--port"]),
    ],
)
def test_the_shell_completes_commands_and_flags(
    typed: str, completed: list[str], console: Console
) -> None:
    env = {
        "_RATOON_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    result = CliRunner().invoke(build_app(), [], env=env, prog_name="ratoon")
    assert sorted(result.stdout.split()) == completed


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
    assert "RATOON_PORT" in printed.err
    assert "integer" in printed.err


@pytest.mark.parametrize("words", [("version",), ("--version",), ("--version", "serve")])
def test_the_version_is_the_distributions(words: tuple[str, ...], console: Console) -> None:
    assert console.type(*words).out == f"ratoon {version('ratoon')}\n"
