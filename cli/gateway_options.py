"""The gateway's flags; `bounds_options` has those of its bounds.

The fields have the names and the defaults of those of `GatewayConfig`; `compose` turns the groups
into the config.

Knows: flags and the values they take. Does not know: which commands take them (`serve`,
`standalone`) or what the settings do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from cli.options import flag
from gateway.config import GatewayConfig

GATEWAY_DEFAULTS = GatewayConfig(model_dir="", model_name="", data_dir="", engine_socket="")
LogLevel = Literal["debug", "info", "warning", "error"]

gateway_flag = partial(flag, panel="Gateway")


@dataclass(frozen=True, slots=True)
class GatewayFlags:
    """The gateway's settings: field for field those of `GatewayConfig` that a person chooses."""

    host: Annotated[str, gateway_flag("--host", "Address to listen on; 0.0.0.0 for all.")] = (
        GATEWAY_DEFAULTS.host
    )
    port: Annotated[int, gateway_flag("--port", "Port to listen on.", min=1, max=65535)] = (
        GATEWAY_DEFAULTS.port
    )
    admin_host: Annotated[str, gateway_flag("--admin-host", "Address of --admin-port.")] = (
        GATEWAY_DEFAULTS.admin_host
    )
    admin_port: Annotated[
        int | None,
        gateway_flag(
            "--admin-port",
            "A separate port for /admin, /healthz, /readyz and /metrics. Left out: --port.",
            min=1,
            max=65535,
        ),
    ] = GATEWAY_DEFAULTS.admin_port
    workers: Annotated[
        int | None,
        gateway_flag(
            "--workers",
            "Gateway processes that share the port. Left out: 1 on up to 4 cores, then a "
            "quarter of the cores, at most 8.",
            min=1,
            max=64,
        ),
    ] = GATEWAY_DEFAULTS.workers
    engine_silence_s: Annotated[
        float | None,
        gateway_flag(
            "--engine-silence-s",
            "Seconds without a sign of life after which an engine counts as hung; must be longer "
            "than any step. Left out: 10 on cuda, 120 on cpu.",
            min=1.0,
        ),
    ] = GATEWAY_DEFAULTS.engine_silence_s
    replicas: Annotated[
        int,
        gateway_flag(
            "--replicas",
            "Number of gateways that share --redis-url; while Redis is down each grants its share.",
            min=1,
            max=1024,
        ),
    ] = GATEWAY_DEFAULTS.replicas
    share_all: Annotated[
        bool,
        gateway_flag("--share-all", "No isolation: all tenants share one cache."),
    ] = GATEWAY_DEFAULTS.share_all
    redis_url: Annotated[
        str | None,
        gateway_flag(
            "--redis-url",
            "Redis for the state of several gateways, such as redis://redis:6379/0. "
            "[dim]\\[default: SQLite in --data-dir][/dim]",
            show_default=False,
        ),
    ] = GATEWAY_DEFAULTS.redis_url
    redis_password_file: Annotated[
        str | None,
        gateway_flag(
            "--redis-password-file", "File with the password of --redis-url.", show_default=False
        ),
    ] = GATEWAY_DEFAULTS.redis_password_file
    redis_timeout_s: Annotated[
        float,
        gateway_flag(
            "--redis-timeout-s",
            "Most seconds to wait for an answer of --redis-url.",
            min=0.001,
            max=10.0,
        ),
    ] = GATEWAY_DEFAULTS.redis_timeout_s
    secrets_dir: Annotated[
        str | None,
        gateway_flag(
            "--secrets-dir",
            "Directory with ratoon_server_secret, ratoon_pepper and ratoon_admin_key, the same "
            "for every gateway; /run/secrets in Docker. [dim]\\[default: made in --data-dir][/dim]",
            show_default=False,
        ),
    ] = GATEWAY_DEFAULTS.secrets_dir
    grace_s: Annotated[
        float,
        gateway_flag("--grace-s", "Seconds that open streams may run on after SIGTERM.", min=0.0),
    ] = GATEWAY_DEFAULTS.grace_s
    log_level: Annotated[LogLevel, gateway_flag("--log-level", "How much is logged.")] = "info"
    otlp_endpoint: Annotated[
        str | None,
        gateway_flag(
            "--otlp-endpoint",
            "URL of an OpenTelemetry collector for traces (OTLP over HTTP); "
            "OTEL_EXPORTER_OTLP_ENDPOINT names one too. Left out: no traces.",
            also="OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
    ] = GATEWAY_DEFAULTS.otlp_endpoint


@dataclass(frozen=True, slots=True)
class AdminKeyFlags:
    """The key that opens the admin routes of the server being started."""

    admin_key: Annotated[
        str | None,
        gateway_flag(
            "--admin-key",
            "The admin key; written to keys.env. [dim]\\[default: the one in "
            "DATA_DIR/keys.env][/dim]",
            show_default=False,
        ),
    ] = None
