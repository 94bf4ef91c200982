"""The flags shared by commands: for the served model, and for the server to connect to.

If a flag for URL or key is omitted, `server_target` finds the value.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options.flags import field, flag

DEFAULT_DATA_DIR = Path(".ratoon")
EMBEDDED = "handbook"
MODEL = "Model"
SERVER = "Where the server is"

_data_dir = partial(flag, "Directory of keys, tenants and secrets.", also="DATA_DIR")
DataDir = Annotated[Path, _data_dir(panel=MODEL)]
ServersDataDir = Annotated[Path, _data_dir(panel=SERVER)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# makes a flag whose help names the default in words
server_field = partial(field, panel=SERVER, show_default=False)
# Flags without help: a server's address, which clients also read from its variables.
hidden_field = partial(field, help_text=None, hidden=True)


def argument(word: str, help_text: str) -> Any:
    """Return a required argument, named `word` in the help."""
    return typer.Argument(metavar=word, help=help_text, show_default=False)


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """The flags for the served model, and for the directory of the server's state."""

    model: str = field(
        EMBEDDED,
        "'handbook' (the embedded demo), a directory with config.json, or a hub id (owner/name).",
        panel=MODEL,
    )
    data_dir: DataDir = DEFAULT_DATA_DIR


@dataclass(frozen=True, slots=True)
class SocketFlags:
    """The flags for the address at which separately started gateways and engines meet."""

    socket: str | None = field(
        None,
        "Where gateway and engine meet: a Unix socket, or tcp://HOST:PORT, which is encrypted "
        "and also takes the next port; for several engines a list with commas. "
        "[dim]\\[default: DATA_DIR/engine.sock][/dim]",
        panel=MODEL,
        show_default=False,
    )
    link_key_file: Path | None = field(
        None,
        "Key of links over TCP, the same at both ends; an engine makes a missing key. "
        "[dim]\\[default: DATA_DIR/link.key][/dim]",
        panel=MODEL,
        show_default=False,
    )


@dataclass(frozen=True, slots=True)
class AdminFlags:
    """The flags for the admin routes' address and key."""

    url: str | None = server_field(
        None,
        "URL of the admin routes. [dim]\\[default: "
        "http://RATOON_ADMIN_HOST:RATOON_ADMIN_PORT, else http://RATOON_HOST:RATOON_PORT, "
        "else the server that runs in DATA_DIR][/dim]",
    )
    admin_key: str | None = server_field(
        None, "The admin key. [dim]\\[default: RATOON_ADMIN_KEY in DATA_DIR/keys.env][/dim]"
    )
    data_dir: ServersDataDir = DEFAULT_DATA_DIR
    host: str | None = hidden_field(None)
    port: int | None = hidden_field(None)
    admin_host: str | None = hidden_field(None)
    admin_port: int | None = hidden_field(None)
    json: Json = False


@dataclass(frozen=True, slots=True)
class TargetFlags:
    """The flags for the server, model and key of a load run."""

    url: str | None = server_field(
        None,
        "URL of the server. [dim]\\[default: http://RATOON_HOST:RATOON_PORT, else the server "
        "that runs in DATA_DIR][/dim]",
    )
    key: str | None = server_field(
        None, "A tenant's key. [dim]\\[default: RATOON_DEMO_KEY in DATA_DIR/keys.env][/dim]"
    )
    served_model: str | None = server_field(
        None, "The model's name. [dim]\\[default: the first of /v1/models][/dim]"
    )
    data_dir: ServersDataDir = DEFAULT_DATA_DIR
    host: str | None = hidden_field(None)
    port: int | None = hidden_field(None)
