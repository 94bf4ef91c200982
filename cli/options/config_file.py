"""`--config FILE`: settings in YAML, overridden by the flags and variables of the same names.

A key is a flag's name with underscores. pydantic checks the file against the types and bounds of
the command's flags. pydantic refuses any other key. The file's values become the command's
defaults. So a flag overrides a variable, and a variable overrides the file.

A variable `RATOON_...` that no command knows is refused too. Otherwise a misspelt variable would be
a setting without effect.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

import typer
from typer.models import OptionInfo

from cli.commands import COMMANDS, CommandGroup
from cli.echo import echo
from cli.errors import CliError
from cli.options.flags import flattened

if TYPE_CHECKING:
    from pydantic import ValidationError

Options: TypeAlias = Mapping[str, tuple[Any, OptionInfo]]  # types and bounds, by name

PREFIX = "RATOON_"
# Variables of images, compose files, keys.env and tests, which no command reads as flags.
OTHER_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "ADMIN_KEY",
        "BUILD_NETWORK",
        "DEMO2_KEY",
        "DEMO_KEY",
        "ENGINE_MEMORY",
        "GATEWAY_MEMORY",
        "METRICS_KEY",
        "MODELS",
        "PUBLISH",
        "PUBLISH_ADMIN",
        "REDIS_MEMORY",
        "SECRETS",
        "TORCH_INDEX",
    )
)
_OF_TESTS = PREFIX + "TEST_"
MAX_BYTES = 1 << 20  # maximum bytes of a settings file; a file of this size takes seconds to read


class BadConfigFile(CliError):
    """An unknown setting, or a wrong value, in a file or an environment variable."""

    exit_code = 2


def _take(context: typer.Context, path: Path | None) -> Path | None:
    """Check the variables, and make the file's settings the command's defaults."""
    options = _options_of(str(context.info_name))
    try:
        check_variables(os.environ, options)
        if path is not None:
            context.default_map = settings_in(path, options)
    except CliError as error:
        echo(f"ratoon: {error.message}", err=True)
        raise typer.Exit(error.exit_code) from error
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=PREFIX + "CONFIG",
        is_eager=True,
        callback=_take,
        dir_okay=False,
        show_default=False,
        help="A file of settings in YAML: flags by their names, such as max_running: 64. Flags "
        "and variables win over it.",
    ),
]


def settings_in(path: Path, options: Options) -> dict[str, Any]:
    """Read the settings of `options` from the file. Raises BadConfig."""
    return _checked(path, options, _read(path), "")


def section_in(
    path: Path, name: str, values: Mapping[str, Any], command: str, taken: Set[str]
) -> dict[str, Any]:
    """Read the section `name` of a file, with settings of `command`. Raises BadConfig.

    `taken` are settings that belong to other parts of the file. The section refuses them.
    """
    options = {key: option for key, option in _options_of(command).items() if key not in taken}
    return _checked(path, options, values, f"{name}.")


def _checked(
    path: Path, options: Options, values: Mapping[str, Any], section: str
) -> dict[str, Any]:
    from pydantic import ConfigDict, ValidationError, create_model

    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    try:
        settings = create_model("Settings", __config__=config, **_fields(options))(**values)
    except ValidationError as error:
        raise BadConfigFile(_first(path, error, options, section)) from None
    return {key: getattr(settings, key) for key in settings.model_fields_set}


def _read(path: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise BadConfigFile(f"{path}: it is larger than {MAX_BYTES} bytes")
            loader = yaml.SafeLoader(file)
            top = loader.get_single_node()
            _check_keys(path, top)
            read = {} if top is None else loader.construct_document(top)
    except OSError as error:
        raise BadConfigFile(f"{path}: {error.strerror}") from None
    # The YAML reader raises ValueError or AttributeError for values such as 2026-13-45, a wrong
    # date.
    except (ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise BadConfigFile(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
        raise BadConfigFile(f"{path}: it should have settings, such as max_running: 64")
    return read


def _check_keys(path: Path, top: Any) -> None:
    """Raise BadConfigFile for a duplicate key, of which YAML's reader keeps the last value."""
    for node in (top, *(value for _, value in top.value)) if _is_mapping(top) else ():
        lines = dict[str, int]()
        for key, _ in node.value if _is_mapping(node) else ():
            line = key.start_mark.line + 1
            if (name := str(key.value)) in lines:
                told = f"{name} is there twice, in lines {lines[name]} and {line}"
                raise BadConfigFile(f"{path}: {told}")
            lines[name] = line


def _is_mapping(node: Any) -> bool:
    return node is not None and node.id == "mapping"


def check_variables(environment: Mapping[str, str], options: Options) -> None:
    """Raise BadConfig for a RATOON_ variable that no command reads.

    The other commands' options are read only for a variable that is neither in `options` nor in
    `OTHER_VARIABLES`.
    """
    given = {name for name in environment if name.startswith(PREFIX)}
    given = {name for name in given if not name.startswith(_OF_TESTS)}
    if not given - OTHER_VARIABLES - set(_variables(options)):
        return
    known = OTHER_VARIABLES.union(*(_variables(found) for found in _all_options(COMMANDS)))
    for name in sorted(given - known):
        raise BadConfigFile(f"the variable {name} is no setting{_nearest(name, known)}")


def _fields(options: Options) -> Any:
    from pydantic import Field

    return {
        name: (Annotated[kind, Field(ge=option.min, le=option.max)], None)
        for name, (kind, option) in options.items()
    }


def _variables(options: Options) -> Iterator[str]:
    yield PREFIX + "CONFIG"
    for _, option in options.values():
        found = option.envvar or ()
        yield from (found,) if isinstance(found, str) else found


def _options_of(command: str) -> Options:
    for panel in COMMANDS.values():
        found = panel.get(command)
        if isinstance(found, str):
            return _of_function(found)
    return {}


def _all_options(panels: Mapping[str, Any]) -> Iterator[Options]:
    for one in panels.values():
        if isinstance(one, str):
            yield _of_function(one)
        else:
            yield from _all_options(one.commands if isinstance(one, CommandGroup) else one)


def _of_function(command: str) -> Options:
    hints = flattened(resolve_name(command)).__annotations__
    found = {name: get_args(hint) for name, hint in hints.items() if len(get_args(hint)) > 1}
    return {
        name: (kind, option)
        for name, (kind, *notes) in found.items()
        for option in notes
        if isinstance(option, OptionInfo) and option.envvar and name != "config_file"
    }


def _first(path: Path, error: ValidationError, names: Iterable[str], within: str = "") -> str:
    [mistake, *_] = error.errors(include_url=False)
    key = str(mistake["loc"][0]) if mistake["loc"] else ""
    if mistake["type"] == "extra_forbidden":
        return f"{path}: {within}{key} is no setting{_nearest(key, names)}"
    said = mistake["msg"].replace("Input should be", "it should be")
    return f"{path}: {within}{key} is {mistake['input']!r}; {said}"


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; the nearest is {found[0]}" if found else ""
