"""The pages of docs/reference, made from the code: `python -m docs.generate` writes them anew.

Flags come from the typer app, routes and bodies from the OpenAPI description, metrics from an
exposition. `tests/seams/project/test_reference.py` compares what is committed with what the code
gives.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.text import Text

from cli.commands import COMMANDS
from cli.main import build_app
from engine.link import stats_messages as counted
from engine.link.interface import ReplicaHealth
from gateway.admin.routes import admin_router
from gateway.composition import DIALECTS
from gateway.config import Bounds
from gateway.dialects.dialect import RouteParts
from gateway.http.app import build_app as build_web_app
from gateway.http.error_dialect import Dialects
from gateway.http.health import health_router
from gateway.prefixes.routes import prefixes_router
from gateway.telemetry.metrics import GatewayMetrics
from gateway.usage.routes import own_usage_router

REFERENCE = Path(__file__).parent / "reference"
MARK = "<!-- Below this line the page is made by docs/generate.py (`make docs`). -->"
_TENANTS_PATHS = ("/v1/", "/tokenize", "/detokenize")
_ABSENT: Any = None  # what routes need to answer, and not to be described


def pages() -> dict[str, str]:
    """Each page by its file's name: what is written by hand above the mark, and what is made."""
    made = {
        "cli.md": _cli_page(),
        "configuration.md": _configuration_page(),
        "http-api.md": _api_page(is_tenants=True),
        "admin-api.md": _api_page(is_tenants=False),
        "metrics.md": _metrics_page(),
    }
    by_hand = {name: (REFERENCE / name).read_text().partition(MARK)[0] for name in made}
    return {name: f"{by_hand[name]}{MARK}\n\n{text}\n" for name, text in made.items()}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, as click has it, in the order of the help."""
    yield from _leaves("ratoon", typer.main.get_command(build_app()))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    for word, member in inner.items():
        yield from _leaves(f"{name} {word}", member)
    if not inner:
        yield name, command


def options_of(command: Any) -> list[Any]:
    """The options of a command, without --help, which all have."""
    return [found for found in command.params if found.param_type_name == "option"]


def _cli_page() -> str:
    serving = {f"ratoon {name}" for name in COMMANDS["Serve"]}
    parts = []
    for name, command in commands():
        parts.append(f"## {name}\n\n{Text.from_markup(command.help).plain.strip()}")
        arguments = [found for found in command.params if found.param_type_name == "argument"]
        rows = [(f"`{found.name.upper()}`", _plain(found.help or "")) for found in arguments]
        parts += [_table(("argument", "meaning"), rows)] if rows else []
        if name in serving:
            flags = ", ".join(f"`{option.opts[0]}`" for option in options_of(command))
            parts.append(f"Flags, described in [Configuration](configuration.md): {flags}")
        elif options_of(command):
            parts.append(_table(_OPTION_COLUMNS, map(_option_row, options_of(command))))
    return "\n\n".join(parts)


def _configuration_page() -> str:
    """The flags of the commands that serve, each once, by the panel of the help it is in."""
    panels: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for name in COMMANDS["Serve"]:
        for option in options_of(dict(commands())[f"ratoon {name}"]):
            rows = panels.setdefault(option.rich_help_panel or "Other", {})
            rows.setdefault(_option_row(option), []).append(name)
    parts = []
    for panel, rows in panels.items():
        lines = [(*row, ", ".join(names)) for row, names in rows.items()]
        parts.append(f"## {panel}\n\n{_table((*_OPTION_COLUMNS, 'of'), lines)}")
    return "\n\n".join(parts)


_OPTION_COLUMNS = ("flag", "variable", "default", "meaning")


def _option_row(option: Any) -> tuple[str, str, str, str]:
    names = "/".join([option.opts[0], *option.secondary_opts])
    given = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
    variables = ", ".join(f"`{variable}`" for variable in given)
    return f"`{names}`", variables, _default_of(option), _plain(option.help or "")


def _default_of(option: Any) -> str:
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return "" if option.default in (None, ()) else f"`{option.default}`"


def _plain(help_text: str) -> str:
    return " ".join(Text.from_markup(help_text).plain.split())


def description() -> dict[str, Any]:
    """The OpenAPI description of all routes, as a gateway serves it at /openapi.json."""
    metrics = GatewayMetrics()
    nobody: Any = object  # a callable without parameters, where a caller is identified
    answering: Any = SimpleNamespace(admission=SimpleNamespace(tokenizer=None))
    card: Any = SimpleNamespace(name="", engine=_ABSENT)
    published: Any = SimpleNamespace(namespaces=_ABSENT)
    parts = RouteParts(answering, card, Bounds(), nobody, _ABSENT, _ABSENT)
    routers = [
        *(dialect.router(parts) for dialect in DIALECTS),
        prefixes_router(parts),
        own_usage_router(_ABSENT, nobody, time.time),
        admin_router(
            _ABSENT,
            _ABSENT,
            _ABSENT,
            metrics,
            nobody,
            published,
            _ABSENT,
            _ABSENT,
            _ABSENT,
            _ABSENT,
            _ABSENT,
        ),
        health_router(_ABSENT, lambda: None),
    ]
    return build_web_app(routers, metrics, Dialects(*DIALECTS)).openapi()


def _api_page(*, is_tenants: bool) -> str:
    described = description()
    schemas = described["components"]["schemas"]
    parts = []
    used: dict[str, None] = {}
    for path, methods in described["paths"].items():
        if path.startswith(_TENANTS_PATHS) != is_tenants:
            continue
        for method, operation in methods.items():
            parts.append(f"## {method.upper()} {path}\n\n{_operation(operation, used)}")
    shown = ["ErrorReply", *used]
    for name in shown:  # grows while it is read
        inner = dict.fromkeys(_names_in(schemas[name]))
        shown += [one for one in inner if one not in shown]
    parts.append("## Bodies")
    parts += [f"### {name}\n\n{_body(schemas[name])}" for name in sorted(shown)]
    return "\n\n".join(parts)


def _operation(operation: Mapping[str, Any], used: dict[str, None]) -> str:
    given = operation.get("parameters", [])
    lines = [f"- {parameter['in']}: `{parameter['name']}`" for parameter in given]
    if "requestBody" in operation:
        lines.append(f"- body: {_content(operation['requestBody'], used)}")
    for status, answer in operation["responses"].items():
        lines.append(f"- {'errors' if status == 'default' else status}: {_content(answer, used)}")
    return "\n".join(lines)


def _content(said: Mapping[str, Any], used: dict[str, None]) -> str:
    kinds = []
    for media, content in said.get("content", {}).items():
        names = list(_names_in(content))
        used.update(dict.fromkeys(names))
        kinds.append(" ".join([f"`{media}`", *map(_link, names)]))
    return ", ".join(kinds)


def _names_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict) and "$ref" in schema:
        yield schema["$ref"].rsplit("/", 1)[1]
    inner = schema.values() if isinstance(schema, dict) else schema
    for part in inner if not isinstance(schema, str | int | float | None) else ():
        yield from _names_in(part)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _body(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = []
    for field, said in schema.get("properties", {}).items():
        default = "required" if field in required else f"`{said.get('default')}`"
        rows.append((f"`{field}`", _type(said), default))
    text = " ".join(schema.get("description", "").split())
    return f"{text}\n\n{_table(('field', 'type', 'default'), rows)}" if rows else text


def _type(said: Mapping[str, Any]) -> str:
    if "$ref" in said:
        return _link(said["$ref"].rsplit("/", 1)[1])
    if "anyOf" in said:
        return " or ".join(dict.fromkeys(map(_type, said["anyOf"])))
    if "enum" in said:
        return " or ".join(f"`{value}`" for value in said["enum"])
    if said.get("type") == "array":
        return f"list of {_type(said.get('items', {}))}"
    if isinstance(said.get("additionalProperties"), dict):
        return f"object of {_type(said['additionalProperties'])}"
    return str(said.get("type", "any"))


def exposition() -> str:
    """What /metrics shows when everything that can be shown has happened."""
    metrics = GatewayMetrics()
    metrics.started("route")
    metrics.ended(
        "route", "stop", prompt_tokens=0, cached_tokens=0, generated_tokens=0, seconds=0.0
    )
    metrics.refused("route", "code")
    metrics.routing.moved("replica")
    metrics.routing.fetch("prefix")
    metrics.routing.snapshot("replica")
    tiers = counted.TierStats(
        lower={"host": _zero(counted.LowerTierStats)},
        ways=[_zero(counted.DirectionStats)],
        evictions={"device": {"room": 0}},
        disk=_zero(counted.DiskStats),
    )
    some = {"pool": _zero(counted.PoolStats), "windows": {"all": _zero(counted.WindowStats)}}
    exchange = counted.ExchangeStats(fetched={"socket": _zero(counted.FetchStats)})
    stats = _zero(counted.EngineStats, tiers=tiers, exchange=exchange, **some)
    replica = ReplicaHealth("ready", "")
    return metrics.render(stats, {"0": replica}).decode()


def _zero(struct: type, **given: Any) -> Any:
    """A `struct` of what is given, and zeros."""
    needed = (field for field in msgspec.structs.fields(struct) if field.required)
    return struct(
        **{field.name: field.type() for field in needed if field.name not in given}, **given
    )


def _metrics_page() -> str:
    rows = []
    for family in text_string_to_metric_families(exposition()):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown = ", ".join(f"`{label}`" for label in labels)
        if not family.samples[0].name.endswith("_created"):
            rows.append((f"`{name}`", family.type, shown, family.documentation))
    return _table(("metric", "type", "labels", "meaning"), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["--"] * len(columns), *rows]
    cells = ([cell.replace("|", "\\|").replace("<", "&lt;") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


if __name__ == "__main__":
    for page, text in pages().items():
        (REFERENCE / page).write_text(text)
