"""Groups of flags as dataclasses, for typer.

A command is a function of a few dataclasses (and plain arguments). `flattened` gives typer a
function whose parameters are the fields of those dataclasses, each with its `Annotated` option,
builds the dataclasses from what typer parsed, and turns a `CliError` into its message and exit
code.

Knows: signatures and exit codes. Does not know: any flag (`options`) or command.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer

from cli.errors import CliError


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with one keyword parameter for every field of its dataclasses."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if _is_group(hint)}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: _take(group, values) for name, group in groups.items()}
        try:
            command(**given, **values)
        except CliError as error:
            typer.echo(f"ratoon: {error.message}", err=True)
            raise typer.Exit(error.exit_code) from error

    parameters = _parameters(command, hints)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _is_group(hint: object) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _take(group: type[Any], values: dict[str, Any]) -> Any:
    """Build one group out of `values`, removing what it used."""
    return group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})


def _parameters(command: Callable[..., None], hints: dict[str, Any]) -> list[inspect.Parameter]:
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if _is_group(hint):
            parameters += _fields_of(hint)
        else:
            parameters.append(_keyword(parameter.name, hint, parameter.default))
    return parameters


def _fields_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        _keyword(
            field.name,
            hints[field.name],
            inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(group)
    ]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )
