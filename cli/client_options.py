"""The flags of the commands that talk to a running server.

Knows: flags. Does not know: how the URL or the key is found when they are left out (`target`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import typer

from cli.gateway_options import GATEWAY_DEFAULTS
from cli.options import DEFAULT_DATA_DIR, SERVER, DataDir, Json, flag
from cli.phases import WorkloadName

EndpointName = Literal["completions", "chat"]

server_flag = partial(flag, panel=SERVER, show_default=False)  # the help says what stands in
load_flag = partial(flag, panel="Load")

# The variables that tell a server where to listen tell its clients where to look.
_Host = Annotated[str, typer.Option("--host", envvar="RATOON_HOST", hidden=True)]
_Port = Annotated[int, typer.Option("--port", envvar="RATOON_PORT", hidden=True)]


@dataclass(frozen=True, slots=True)
class AdminFlags:
    """Where the admin routes are and the key that opens them."""

    url: Annotated[
        str | None,
        server_flag(
            "--url",
            "URL of the admin routes. [dim]\\[default: http://RATOON_HOST:RATOON_PORT, or "
            "RATOON_ADMIN_HOST:RATOON_ADMIN_PORT where that is set][/dim]",
        ),
    ] = None
    admin_key: Annotated[
        str | None,
        server_flag(
            "--admin-key",
            "The admin key. [dim]\\[default: RATOON_ADMIN_KEY in DATA_DIR/keys.env][/dim]",
        ),
    ] = None
    data_dir: DataDir = DEFAULT_DATA_DIR
    host: _Host = GATEWAY_DEFAULTS.host
    port: _Port = GATEWAY_DEFAULTS.port
    admin_host: Annotated[
        str, typer.Option("--admin-host", envvar="RATOON_ADMIN_HOST", hidden=True)
    ] = GATEWAY_DEFAULTS.admin_host
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", envvar="RATOON_ADMIN_PORT", hidden=True)
    ] = None
    json: Json = False


@dataclass(frozen=True, slots=True)
class TargetFlags:
    """Which server, model and key a load run uses."""

    url: Annotated[
        str | None,
        server_flag(
            "--url", "URL of the server. [dim]\\[default: http://RATOON_HOST:RATOON_PORT][/dim]"
        ),
    ] = None
    key: Annotated[
        str | None,
        server_flag(
            "--key", "A tenant's key. [dim]\\[default: RATOON_DEMO_KEY in DATA_DIR/keys.env][/dim]"
        ),
    ] = None
    served_model: Annotated[
        str | None,
        server_flag(
            "--served-model", "The model's name. [dim]\\[default: the first of /v1/models][/dim]"
        ),
    ] = None
    data_dir: DataDir = DEFAULT_DATA_DIR
    host: _Host = GATEWAY_DEFAULTS.host
    port: _Port = GATEWAY_DEFAULTS.port


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """The load of `ratoon bench`."""

    workload: Annotated[
        WorkloadName | None,
        load_flag(
            "--workload",
            "Run a named workload instead of the load that the flags below describe; of these only "
            "--vocab, --seed, --timeout-s and --json apply to it.",
        ),
    ] = None
    small: Annotated[
        bool, load_flag("--small", "Run the workload at a size for a CPU and a short context.")
    ] = False
    processes: Annotated[
        int, load_flag("--processes", "Processes that send a workload's requests.", min=1, max=64)
    ] = 4
    endpoint: Annotated[
        EndpointName,
        load_flag(
            "--endpoint",
            "'completions' sends token ids; 'chat' sends words, of about as many tokens.",
        ),
    ] = "completions"
    requests: Annotated[int, load_flag("--requests", "Requests in all.", min=1)] = 64
    concurrency: Annotated[
        int, load_flag("--concurrency", "Requests in flight at once.", min=1)
    ] = 8
    prompt_tokens: Annotated[
        int, load_flag("--prompt-tokens", "Tokens of every prompt.", min=1)
    ] = 512
    shared_tokens: Annotated[
        int,
        load_flag("--shared-tokens", "How many of these all prompts begin with.", min=0),
    ] = 256
    output_tokens: Annotated[
        int, load_flag("--output-tokens", "Tokens of every answer.", min=1)
    ] = 64
    vocab: Annotated[
        int,
        load_flag(
            "--vocab",
            "Token ids are drawn below this; at most the model's vocabulary.",
            min=16,
        ),
    ] = 256
    seed: Annotated[
        int | None,
        load_flag(
            "--seed",
            "Seed of the prompts. Left out: a new one, so that no run hits earlier prefixes.",
        ),
    ] = None
    timeout_s: Annotated[
        float,
        load_flag("--timeout-s", "Seconds of silence after which a request failed.", min=0.1),
    ] = 120.0
    json: Json = False
