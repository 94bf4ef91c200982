"""How flags are made, and the flags that many commands have.

Knows: how a flag gets its `RATOON_*` variable and its panel. Does not know: the flags of the engine
(`engine_options`), of the gateway (`gateway_options`, `bounds_options`), nor of the commands that
talk to a server (`client_options`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_DATA_DIR = Path(".ratoon")
EMBEDDED = "handbook"  # the model that comes with Ratoon
MODEL = "Model"
SERVER = "Where the server is"


def flag(name: str, help_text: str, *, panel: str, also: str | None = None, **bounds: Any) -> Any:
    """The option `name`, which the variable `RATOON_NAME` or else `also` can set too."""
    variable = "RATOON_" + name.strip("-").split("/")[0].replace("-", "_").upper()
    variables = variable if also is None else [variable, also]
    return typer.Option(name, envvar=variables, help=help_text, rich_help_panel=panel, **bounds)


DataDir = Annotated[
    Path, flag("--data-dir", "Where keys, tenants and secrets are kept.", panel=MODEL)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """What is served and where the server keeps its state."""

    model: Annotated[
        str,
        flag(
            "--model",
            "'handbook' (the embedded demo), a directory with config.json, or a hub id "
            "(owner/name).",
            panel=MODEL,
        ),
    ] = EMBEDDED
    data_dir: DataDir = DEFAULT_DATA_DIR


@dataclass(frozen=True, slots=True)
class SocketFlags:
    """Where a gateway and an engine that are started separately meet."""

    socket: Annotated[
        Path | None,
        flag(
            "--socket",
            "Unix socket between gateway and engine. [dim]\\[default: DATA_DIR/engine.sock][/dim]",
            panel=MODEL,
            show_default=False,
        ),
    ] = None
