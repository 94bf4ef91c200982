"""Groups of typer flags: dataclasses, and configs with a table of their fields' meanings.

A command is a function of a few groups (and plain arguments). `flattened` gives typer a function
whose parameters are the fields of the groups. That function builds the groups from the parsed
values, and turns a `CliError` into its message and exit code. A field NAME has the flag `--name`
and the variable `RATOON_NAME`. A switch that is on by default also has `--no-name`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
import typer

from cli.echo import echo
from cli.errors import CliError
from engine.config import part_with, with_settings

Value = TypeVar("Value")
_OPTION = "option"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, not yet bound to a field. `also` names a second environment variable."""

    help_text: str | None
    panel: str | None
    also: str | None
    settings: dict[str, Any]

    def option(self, name: str, default: Any) -> Any:
        """Return the option for the field `name`."""
        dashed, variable = "--" + name.replace("_", "-"), "RATOON_" + name.upper()
        return typer.Option(
            f"{dashed}/--no-{dashed[2:]}" if default is True else dashed,
            envvar=variable if self.also is None else [variable, self.also],
            help=self.help_text,
            rich_help_panel=self.panel,
            **{"callback": _finite, **self.settings},
        )


def flag(
    help_text: str | None, *, panel: str | None = None, also: str | None = None, **settings: Any
) -> Any:
    """Return a flag. `settings` go to typer: bounds, `show_default`, `hidden`.

    The flag refuses infinite numbers, unless `settings` has another `callback`.
    """
    return Flag(help_text, panel, also, settings)


def _finite(value: Any) -> Any:
    """Check that a number is finite, since configs are passed as JSON, which has no infinity."""
    if isinstance(value, float) and not isfinite(value):
        raise typer.BadParameter(f"{value} should be a finite number")
    return value


def field(default: Value, help_text: str | None, **more: Any) -> Value:
    """Return a dataclass field with a default and a flag. `help_text` and `more` go to `flag`."""
    return _with_option(default, flag(help_text, **more))


def plain_field(default: Value, *names: str, **settings: Any) -> Value:
    """Return a dataclass field with a plain typer option, which has no environment variable."""
    return _with_option(default, typer.Option(*names, **settings))


def _with_option(default: Value, option: Any) -> Value:
    made: Any = dataclasses.field(default=default, metadata={_OPTION: option})
    return cast(Value, made)


@dataclass(frozen=True, slots=True)
class ConfigFlags:
    """Flags for the fields of a config or of its parts, with the fields' types and defaults.

    A command has a parameter `Annotated[Config, ConfigFlags(...)]`, and gets `defaults` changed by
    the flags that the user gives.
    """

    defaults: msgspec.Struct
    flags: Mapping[str, Flag]


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command a keyword parameter for every flag of its groups."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: found for name, hint in hints.items() if (found := _group_of(hint))}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: _take(group, values) for name, group in groups.items()}
        try:
            command(**given, **values)
        except CliError as error:
            if error.message:
                echo(f"ratoon: {error.message}", err=True)
            raise typer.Exit(error.exit_code) from error

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _fields_of(groups[name])
        else:
            parameters.append(_keyword(name, hints[name], parameter.default))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _group_of(hint: Any) -> type[Any] | ConfigFlags | None:
    if get_origin(hint) is Annotated:
        return next((one for one in get_args(hint) if isinstance(one, ConfigFlags)), None)
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _take(group: type[Any] | ConfigFlags, values: dict[str, Any]) -> Any:
    if isinstance(group, ConfigFlags):
        given = {name: values.pop(name) for name in group.flags}
        return with_settings(group.defaults, given)
    return group(**{one.name: values.pop(one.name) for one in dataclasses.fields(group)})


def _fields_of(group: type[Any] | ConfigFlags) -> Iterator[inspect.Parameter]:
    if isinstance(group, ConfigFlags):
        # cached, because a hundred flags belong to few types
        hints_of = functools.cache(get_type_hints)
        for name, one in group.flags.items():
            config = part_with(group.defaults, name)
            hint = hints_of(type(config))[name]
            yield _keyword(name, Annotated[hint, one], getattr(config, name))
        return
    hints = get_type_hints(group, include_extras=True)
    for part in dataclasses.fields(group):
        is_required, hint = part.default is dataclasses.MISSING, hints[part.name]
        if _OPTION in part.metadata:
            hint = Annotated[hint, part.metadata[_OPTION]]
        yield _keyword(part.name, hint, inspect.Parameter.empty if is_required else part.default)


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        notes = [one.option(name, default) if isinstance(one, Flag) else one for one in notes]
        hint = Annotated[kind, *notes]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
