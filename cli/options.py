"""Every flag, once: its name, its `RATOON_*` variable, its bounds and what it is for.

The groups' fields carry the names of the fields of `EngineConfig`, `GatewayConfig` and `Bounds`
and take their defaults from there; `compose` puts the groups into the configs.

Knows: flags. Does not know: which command takes which group (`main`), nor what follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from engine.config import DeviceName, DtypeName, EngineConfig, LoadFormat
from gateway.config import Bounds, GatewayConfig
from prefix_cache.policies import PolicyName

ENGINE_DEFAULTS = EngineConfig(model_dir="", socket="")
GATEWAY_DEFAULTS = GatewayConfig(model_dir="", model_name="", data_dir="", engine_socket="")
BOUNDS_DEFAULTS = Bounds()
DEFAULT_DATA_DIR = Path(".ratoon")
LogLevel = Literal["debug", "info", "warning", "error"]


def flag(name: str, help_text: str, *, panel: str, also: str | None = None, **bounds: Any) -> Any:
    """An option `--name` that `RATOON_NAME` may stand in for, or else the variable `also`."""
    variable = "RATOON_" + name.strip("-").split("/")[0].replace("-", "_").upper()
    variables = variable if also is None else [variable, also]
    return typer.Option(name, envvar=variables, help=help_text, rich_help_panel=panel, **bounds)


MODEL = "Model"
ENGINE = "Engine"
GATEWAY = "Gateway"
BOUNDS = "Bounds on one request or key"
SERVER = "Where the server is"
LOAD = "Load"

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
    ] = "handbook"
    data_dir: DataDir = DEFAULT_DATA_DIR


@dataclass(frozen=True, slots=True)
class SocketFlags:
    """Where a gateway and an engine that are started apart meet."""

    socket: Annotated[
        Path | None,
        flag(
            "--socket",
            "Unix socket between gateway and engine. [dim]\\[default: DATA_DIR/engine.sock][/dim]",
            panel=MODEL,
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The engine's settings: field for field those of `EngineConfig` that a person chooses."""

    device: Annotated[DeviceName, flag("--device", "Where the model runs.", panel=ENGINE)] = (
        ENGINE_DEFAULTS.device
    )
    dtype: Annotated[
        DtypeName,
        flag(
            "--dtype",
            "Of weights and KV; auto is float32 on cpu, the checkpoint's own on cuda.",
            panel=ENGINE,
        ),
    ] = ENGINE_DEFAULTS.dtype
    load_format: Annotated[
        LoadFormat,
        flag("--load-format", "'dummy' fills random weights, for benchmarks.", panel=ENGINE),
    ] = ENGINE_DEFAULTS.load_format
    block_size: Annotated[
        int, flag("--block-size", "Tokens per block of the cache.", panel=ENGINE, min=1, max=256)
    ] = ENGINE_DEFAULTS.block_size
    cache_tokens: Annotated[
        int | None,
        flag(
            "--cache-tokens",
            "Tokens the cache holds. Left out: sized from free memory.",
            panel=ENGINE,
            min=1,
        ),
    ] = ENGINE_DEFAULTS.cache_tokens
    host_cache_gib: Annotated[
        float | None,
        flag(
            "--host-cache-gib",
            "Host memory for blocks that leave the device; 0: none. Left out: 0.25 on cpu; on cuda "
            "a quarter of what is free, at most 64.",
            panel=ENGINE,
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.host_cache_gib
    host_cache_tokens: Annotated[
        int | None,
        flag("--host-cache-tokens", "The same in tokens.", panel=ENGINE, min=0),
    ] = ENGINE_DEFAULTS.host_cache_tokens
    disk_cache_dir: Annotated[
        str | None,
        flag(
            "--disk-cache-dir",
            "Where blocks outlive the engine; one engine's alone. "
            "[dim]\\[default: DATA_DIR/blocks][/dim]",
            panel=ENGINE,
            show_default=False,
        ),
    ] = ENGINE_DEFAULTS.disk_cache_dir
    disk_cache_gib: Annotated[
        float,
        flag("--disk-cache-gib", "Most that they take on disk; 0: none.", panel=ENGINE, min=0.0),
    ] = ENGINE_DEFAULTS.disk_cache_gib
    disk_encryption: Annotated[
        bool,
        flag(
            "--disk-encryption",
            "Encrypt blocks on disk, under a key for every tenant.",
            panel=ENGINE,
        ),
    ] = ENGINE_DEFAULTS.disk_encryption
    cache_policy: Annotated[
        PolicyName, flag("--cache-policy", "Which blocks go first.", panel=ENGINE)
    ] = ENGINE_DEFAULTS.cache_policy
    spill_grace_s: Annotated[
        float,
        flag(
            "--spill-grace-s",
            "Seconds that blocks may be written to disk for, hottest first, at the end.",
            panel=ENGINE,
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.spill_grace_s
    memory_fraction: Annotated[
        float,
        flag(
            "--memory-fraction",
            "Of the device's free memory, when --cache-tokens is left out.",
            panel=ENGINE,
            min=0.01,
            max=1.0,
        ),
    ] = ENGINE_DEFAULTS.memory_fraction
    max_model_len: Annotated[
        int | None,
        flag(
            "--max-model-len",
            "Tokens of prompt and answer together. Left out: the model's own.",
            panel=ENGINE,
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_model_len
    max_batch_tokens: Annotated[
        int | None,
        flag(
            "--max-batch-tokens",
            "Tokens computed in one step. Left out: 512 on cpu, 8192 on cuda.",
            panel=ENGINE,
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens
    max_batch_tokens_beside_decodes: Annotated[
        int | None,
        flag(
            "--max-batch-tokens-beside-decodes",
            "Of prompts, in a step with running answers: fewer give shorter gaps between their "
            "tokens and later first tokens. Left out: all of --max-batch-tokens.",
            panel=ENGINE,
            min=1,
        ),
    ] = ENGINE_DEFAULTS.max_batch_tokens_beside_decodes
    max_running: Annotated[
        int, flag("--max-running", "Sequences that run at once.", panel=ENGINE, min=1)
    ] = ENGINE_DEFAULTS.max_running
    max_waiting: Annotated[
        int,
        flag("--max-waiting", "Sequences that may queue; more are 429.", panel=ENGINE, min=1),
    ] = ENGINE_DEFAULTS.max_waiting
    single_flight_deadline_s: Annotated[
        float,
        flag(
            "--single-flight-deadline-s",
            "Seconds a request waits for another that computes the same prefix.",
            panel=ENGINE,
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.single_flight_deadline_s
    steps_ahead: Annotated[
        int,
        flag(
            "--steps-ahead",
            "1: decide a step while the one before is computed; 0: wait for it.",
            panel=ENGINE,
            min=0,
            max=1,
        ),
    ] = ENGINE_DEFAULTS.steps_ahead
    graph_tokens: Annotated[
        int,
        flag(
            "--graph-tokens",
            "On cuda, steps of up to so many tokens are recorded once and replayed; 0: none.",
            panel=ENGINE,
            min=0,
        ),
    ] = ENGINE_DEFAULTS.graph_tokens
    least_shared_tokens: Annotated[
        int | None,
        flag(
            "--least-shared-tokens",
            "On cuda, a prefix of so many tokens that decodes have in common is read once for all "
            "of them; 0: never. Left out: as many as were measured to pay.",
            panel=ENGINE,
            min=0,
        ),
    ] = ENGINE_DEFAULTS.least_shared_tokens
    num_threads: Annotated[
        int | None,
        flag(
            "--num-threads",
            "CPU threads. Left out: one core fewer than there are.",
            panel=ENGINE,
            min=1,
        ),
    ] = ENGINE_DEFAULTS.num_threads


@dataclass(frozen=True, slots=True)
class EngineGraceFlags:
    """How an engine that is started alone stops; beside a gateway, that one's grace counts."""

    grace_s: Annotated[
        float,
        flag(
            "--grace-s",
            "Seconds that running requests may go on after SIGTERM.",
            panel=ENGINE,
            min=0.0,
        ),
    ] = ENGINE_DEFAULTS.grace_s


@dataclass(frozen=True, slots=True)
class GatewayFlags:
    """The gateway's settings: field for field those of `GatewayConfig` that a person chooses."""

    host: Annotated[
        str, flag("--host", "Address to listen on; 0.0.0.0 is all of them.", panel=GATEWAY)
    ] = GATEWAY_DEFAULTS.host
    port: Annotated[int, flag("--port", "Port to listen on.", panel=GATEWAY, min=1, max=65535)] = (
        GATEWAY_DEFAULTS.port
    )
    admin_host: Annotated[str, flag("--admin-host", "Address of --admin-port.", panel=GATEWAY)] = (
        GATEWAY_DEFAULTS.admin_host
    )
    admin_port: Annotated[
        int | None,
        flag(
            "--admin-port",
            "Port of /admin, /healthz, /readyz and /metrics. Left out: --port.",
            panel=GATEWAY,
            min=1,
            max=65535,
        ),
    ] = GATEWAY_DEFAULTS.admin_port
    workers: Annotated[
        int | None,
        flag(
            "--workers",
            "Gateway processes that share the port. Left out: 1 on up to 4 cores, then a "
            "quarter of the cores, at most 8.",
            panel=GATEWAY,
            min=1,
            max=64,
        ),
    ] = GATEWAY_DEFAULTS.workers
    engine_silence_s: Annotated[
        float | None,
        flag(
            "--engine-silence-s",
            "Seconds without a word after which an engine counts as hung: more than any step "
            "takes. Left out: 10 on cuda, 120 on cpu.",
            panel=GATEWAY,
            min=1.0,
        ),
    ] = GATEWAY_DEFAULTS.engine_silence_s
    replicas: Annotated[
        int,
        flag(
            "--replicas",
            "Gateways that share --redis-url; each has its part of the rates while Redis is away.",
            panel=GATEWAY,
            min=1,
            max=1024,
        ),
    ] = GATEWAY_DEFAULTS.replicas
    share_all: Annotated[
        bool,
        flag("--share-all", "One owner: all tenants share one cache.", panel=GATEWAY),
    ] = GATEWAY_DEFAULTS.share_all
    redis_url: Annotated[
        str | None,
        flag(
            "--redis-url",
            "Where several gateways keep their state, such as redis://redis:6379/0. "
            "[dim]\\[default: SQLite in --data-dir][/dim]",
            panel=GATEWAY,
            show_default=False,
        ),
    ] = GATEWAY_DEFAULTS.redis_url
    redis_password_file: Annotated[
        str | None,
        flag(
            "--redis-password-file",
            "File with the password of --redis-url.",
            panel=GATEWAY,
            show_default=False,
        ),
    ] = GATEWAY_DEFAULTS.redis_password_file
    redis_timeout_s: Annotated[
        float,
        flag(
            "--redis-timeout-s",
            "Seconds that one answer of --redis-url may take.",
            panel=GATEWAY,
            min=0.001,
            max=10.0,
        ),
    ] = GATEWAY_DEFAULTS.redis_timeout_s
    secrets_dir: Annotated[
        str | None,
        flag(
            "--secrets-dir",
            "Directory with ratoon_server_secret, ratoon_pepper and ratoon_admin_key, the same "
            "for every gateway; /run/secrets in Docker. [dim]\\[default: made in --data-dir][/dim]",
            panel=GATEWAY,
            show_default=False,
        ),
    ] = GATEWAY_DEFAULTS.secrets_dir
    grace_s: Annotated[
        float,
        flag(
            "--grace-s",
            "Seconds that open streams may run on after SIGTERM.",
            panel=GATEWAY,
            min=0.0,
        ),
    ] = GATEWAY_DEFAULTS.grace_s
    log_level: Annotated[LogLevel, flag("--log-level", "How much is logged.", panel=GATEWAY)] = (
        "info"
    )
    otlp_endpoint: Annotated[
        str | None,
        flag(
            "--otlp-endpoint",
            "URL of an OpenTelemetry collector (OTLP over HTTP) for traces; "
            "OTEL_EXPORTER_OTLP_ENDPOINT names one too. Left out: no traces.",
            panel=GATEWAY,
            also="OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
    ] = GATEWAY_DEFAULTS.otlp_endpoint


@dataclass(frozen=True, slots=True)
class AdminKeyFlags:
    """The key that opens the admin routes of the server being started."""

    admin_key: Annotated[
        str | None,
        flag(
            "--admin-key",
            "The admin key; written to keys.env. [dim]\\[default: the one in "
            "DATA_DIR/keys.env][/dim]",
            panel=GATEWAY,
            show_default=False,
        ),
    ] = None
