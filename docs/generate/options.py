"""The pages of commands and of settings, from the typer app."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import typer
from rich.text import Text

from cli.main import build_app
from cli.options.options import AdminFlags, TargetFlags

_SERVERS = ("ratoon serve", "ratoon gateway", "ratoon engine")
_SHARED = {"Operators' options": AdminFlags, "Tenants' options": TargetFlags}
_Row = tuple[str, str, str]  # an option or argument as typed, its default and its meaning
_NAMED = [
    (f"`{name.upper()}`", "", f"The {name}'s name or id.") for name in ("tenant", "group", "prefix")
]


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, in the order of the help."""
    yield from _leaves("ratoon", typer.main.get_command(build_app()))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    for word, member in inner.items():
        yield from _leaves(f"{name} {word}", member)
    if not inner:
        yield name, command


def options_of(command: Any) -> list[Any]:
    """List the options that a command's help shows, except --help."""
    options = (found for found in command.params if found.param_type_name == "option")
    return [option for option in options if not option.hidden]


def cli_page() -> str:
    """Write each command with its options. Options of many commands are described once."""
    known = dict(commands())
    shared = {title: _rows_of(group, known) for title, group in _SHARED.items()}
    described = {**shared, "Operators' options": [*shared["Operators' options"], *_NAMED]}
    configured = {row for name in _SERVERS for row in _option_rows(known[name])}
    parts = [f"## {title}\n\n{_listed(rows)}" for title, rows in described.items()]
    for name, command in known.items():
        said = Text.from_markup(command.help).plain.strip().replace("\n\nExample:\n", "\n")
        parts.append(f"## {name}\n\n" + said.removesuffix(f"\n\n    {name}"))
        if name in _SERVERS:
            parts.append("[Options](configuration.md).")
            continue
        rows = _option_rows(command)
        for title, members in shared.items():
            if set(members) <= set(rows):
                parts.append(f"[{title}](#{_anchor(title)}).")
                rows = [row for row in rows if row not in members]
        told = [row for row in rows if row not in configured]
        if lines := [*_argument_rows(command), *told]:
            parts.append(_listed(lines))
        if elsewhere := ", ".join(row[0] for row in rows if row in configured):
            parts.append(f"As in [Configuration](configuration.md): {elsewhere}.")
        parts += _variables_said(command, told)
    return "\n\n".join(parts)


def _anchor(title: str) -> str:
    return title.lower().replace("'", "").replace(" ", "-")


def _rows_of(group: type, known: Mapping[str, Any]) -> list[_Row]:
    """List the options of a group of flags, as in the first command that has all of them."""
    names = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(group)}
    for command in known.values():
        having = [option for option in command.params if option.opts[0] in names]
        if len(having) == len(names):
            return [_option_row(option) for option in having if not option.hidden]
    raise LookupError(group)


def _variables_said(command: Any, told: Sequence[_Row]) -> list[str]:
    own = [option for option in options_of(command) if _option_row(option) in told]
    having, lacking = (
        [f"`{option.opts[0]}`" for option in own if bool(option.envvar) is has]
        for has in (True, False)
    )
    if not having:
        return []
    if len(having) < len(lacking):
        return [f"Variables exist for: {', '.join(having)}."]
    return [f"All but {', '.join(lacking)} have variables." if lacking else "All have variables."]


def configuration_page() -> str:
    """Write the flags of the commands that serve, each once, by its panel of the help."""
    known = dict(commands())
    panels: dict[str, dict[_Row, list[str]]] = {}
    for name in _SERVERS:
        for option in options_of(known[name]):
            rows = panels.setdefault(option.rich_help_panel or "Other", {})
            rows.setdefault(_option_row(option), []).append(f"`{name}`")
    parts = []
    for panel, rows in panels.items():
        parts.append(f"## {panel}")
        for names, group in itertools.groupby(rows, key=rows.__getitem__):
            parts.append(f"Of {', '.join(names)}:\n\n{_listed(group)}")
    return "\n\n".join(parts)


def _listed(rows: Iterable[_Row]) -> str:
    lines = (
        f"- {flag}{f' ({default})' if default else ''}: {said}" for flag, default, said in rows
    )
    return "\n".join(lines)


def _argument_rows(command: Any) -> list[_Row]:
    arguments = [found for found in command.params if found.param_type_name == "argument"]
    rows = [(f"`{found.name.upper()}`", "", _plain(found.help or "")) for found in arguments]
    return [row for row in rows if row not in _NAMED]


def _option_rows(command: Any) -> list[_Row]:
    return [_option_row(option) for option in options_of(command)]


def _option_row(option: Any) -> _Row:
    names = "/".join([option.opts[0], *option.secondary_opts])
    text, _, said = _plain(option.help or "").partition(" [default: ")
    default = said.removesuffix("]") or _default_of(option)
    choices = _choices(option.type_descriptor.annotation)
    others = ", ".join(f"`{choice}`" for choice in choices if choice != option.default)
    also = option.envvar[1:] if isinstance(option.envvar, list) else []
    text += "".join(f" Also `{variable}`." for variable in also)
    return f"`{names}`", "; or ".join(filter(None, [default, others])), text


def _choices(annotation: Any) -> Iterator[str]:
    for part in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield part
        else:
            yield from _choices(part)


def _default_of(option: Any) -> str:
    if isinstance(option.default, bool):
        return "on" if option.default else ""
    return "" if option.default in (None, (), "") else f"`{option.default}`"


def _plain(help_text: str) -> str:
    return " ".join(Text.from_markup(help_text).plain.split())
