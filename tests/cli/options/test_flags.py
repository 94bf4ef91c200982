import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cli.errors import BadSetting, CliError, ServerRefused
from cli.options.flags import field, flattened


@dataclass(frozen=True, slots=True)
class Paint:
    colour: Annotated[str, typer.Option("--colour", envvar="RATOON_TEST_COLOUR")] = "green"
    coats: Annotated[int, typer.Option("--coats", min=1)] = 1


@dataclass(frozen=True, slots=True)
class Place:
    room: Annotated[str, typer.Option("--room")]


def run(
    command: Callable[..., None], *words: str, env: dict[str, str] | None = None
) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(flattened(command))
    result = CliRunner().invoke(app, list(words), env=env)
    return result.exit_code, result.output


def paint(place: Place, paint: Paint, wall: Annotated[str, typer.Argument()] = "north") -> None:
    """Paint a wall."""
    typer.echo(f"{place.room} {paint.colour} x{paint.coats} {wall}")


def test_groups_arrive_built_from_their_flags() -> None:
    assert run(paint, "--room", "hall", "--coats", "2", "south") == (0, "hall green x2 south\n")


def test_a_variable_stands_in_for_a_flag_and_a_flag_wins() -> None:
    env = {"RATOON_TEST_COLOUR": "blue"}
    assert run(paint, "--room", "hall", env=env) == (0, "hall blue x1 north\n")
    assert run(paint, "--room", "hall", "--colour", "red", env=env) == (0, "hall red x1 north\n")


def test_a_field_without_default_is_a_required_flag() -> None:
    status, said = run(paint)
    assert status == 2
    assert "--room" in said


def test_the_signature_lists_every_field_once() -> None:
    names = list(inspect.signature(flattened(paint)).parameters)
    assert names == ["room", "colour", "coats", "wall"]


def test_the_help_is_the_commands_own() -> None:
    assert flattened(paint).__doc__ == "Paint a wall."


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadSetting("--room", "is locked"), 2),
        (ServerRefused("no paint left", status=409), 1),
        (CliError("something else"), 1),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(error: CliError, status: int) -> None:
    def fail(paint: Paint) -> None:
        raise error

    assert run(fail) == (status, f"ratoon: {error.message}\n")


@dataclass(frozen=True, slots=True)
class Pot:
    litres: float | None = field(None, "How much.", min=0.5)
    per_hour: float | None = field(None, "How fast.", callback=None)


def test_a_number_without_end_is_refused_by_its_flag() -> None:
    """Refuse an infinite number with its flag's name.

    JSON has no infinity: in a config the number would become null, like a missing value.
    """

    def fill(pot: Pot) -> None:
        typer.echo(f"{pot.litres} {pot.per_hour}")

    assert run(fill, "--litres", "2") == (0, "2.0 None\n")
    assert run(fill, "--per-hour", "inf") == (0, "None inf\n"), "one that says what it means"
    for said, env in ((["--litres", "inf"], {}), ([], {"RATOON_LITRES": "inf"})):
        status, told = run(fill, *said, env=env)
        assert status == 2
        assert "'--litres'" in told
        assert "inf should be a finite number" in " ".join(told.replace("│", "").split())


def test_other_exceptions_are_not_swallowed() -> None:
    def fail(paint: Paint) -> None:
        raise ZeroDivisionError

    app = typer.Typer()
    app.command()(flattened(fail))
    result = CliRunner().invoke(app, [])
    assert isinstance(result.exception, ZeroDivisionError)
