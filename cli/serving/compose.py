"""The composition of processes' configs from flags, all in one place.

This module decides which flag sets which field, and which values exclude each other. It does no
I/O.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from cli.errors import BadSetting
from cli.models.chat_flags import check_tool_format, check_variables
from cli.models.model_source import ModelSource
from cli.options.gateway_options import PriceFlags
from engine.config import EngineConfig
from engine.link.address import EVERYWHERE, address, host_and_port, is_tcp
from gateway.config import Bounds, GatewayConfig, Shared
from gateway.http.cors import origins_in
from gateway.tenant_limits import Prices

# On Linux sockaddr_un holds 108 bytes, with a final zero. Other systems have slightly fewer.
MAX_SOCKET_BYTES = 100
BLOCKS_NAME = "blocks"
OF_RANKS = "(--tensor-parallel, --pipeline-parallel) send no blocks to others, and fetch none"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def engine_config(
    source: ModelSource, data_dir: Path, socket: str, flags: EngineConfig
) -> EngineConfig:
    """Compose the engine's config. Raises BadSetting if values exclude each other.

    Blocks on disk are in `data_dir`, unless the flags name a directory.
    """
    if flags.cache.cache_tokens is not None and flags.cache.cache_tokens < flags.cache.block_size:
        raise BadSetting(
            "--cache-tokens",
            f"{flags.cache.cache_tokens} is less than one block of {flags.cache.block_size} tokens",
        )
    adapters = flags.model.adapters_dir
    return flags.changed(
        model_dir=str(source.directory),
        adapters_dir=None if adapters is None else str(Path(adapters).absolute()),
        socket=checked_socket(socket),
        exchange=_checked_exchange(flags, socket),
        disk_cache_dir=str(Path(flags.cache.disk_cache_dir or data_dir / BLOCKS_NAME).absolute()),
    )


def gateway_config(
    source: ModelSource,
    data_dir: Path,
    sockets: Sequence[str],
    flags: GatewayConfig,
    bounds: Bounds,
    prices: PriceFlags,
) -> GatewayConfig:
    """Compose the gateway's config. Raises BadSetting if values exclude each other."""
    if flags.admin_port == flags.port:
        raise BadSetting(
            "--admin-port", f"{flags.port} is also --port; leave --admin-port out to use one port"
        )
    check_endpoint(flags.otlp_endpoint)
    check_origins(flags.cors_origins)
    checked_redis_url(flags)
    check_tool_format(flags.tool_format)
    check_variables(flags.default_chat_template_kwargs)
    return replace(
        flags,
        model_dir=str(source.directory),
        model_name=source.name,
        data_dir=str(data_dir.absolute()),
        engines=tuple(map(checked_socket, sockets)),
        bounds=checked_bounds(bounds),
        prices=checked_prices(prices),
    )


def checked_bounds(flags: Bounds) -> Bounds:
    """Return the bounds. Raises BadSetting if a body of allowed size would exceed them."""
    if flags.max_tenant_body_bytes < flags.max_body_bytes:
        raise BadSetting(
            "--max-tenant-body-bytes",
            f"{flags.max_tenant_body_bytes} is less than one body of {flags.max_body_bytes} bytes",
        )
    if flags.max_all_body_bytes - flags.max_all_body_bytes // 8 < flags.max_body_bytes:
        raise BadSetting(
            "--max-all-body-bytes",
            f"seven eighths of {flags.max_all_body_bytes}, which large bodies may fill, are less "
            f"than one of {flags.max_body_bytes} bytes",
        )
    return flags


def checked_prices(flags: PriceFlags) -> Prices:
    """Return the prices. Raises BadSetting if a cached token costs more than a computed token."""
    if flags.price_cached > flags.price_computed:
        raise BadSetting("--price-cached", f"{flags.price_cached:g} is more than --price-computed")
    return Prices(
        computed=flags.price_computed, cached=flags.price_cached, generated=flags.price_generated
    )


def check_endpoint(url: str | None) -> None:
    """Raise BadSetting if `url` is malformed, or has credentials, which other users could see."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadSetting("--otlp-endpoint", "it is not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSetting("--otlp-endpoint", "it must begin with http:// or https:// and a host")
    if parts.username is not None or parts.query:
        raise BadSetting(
            "--otlp-endpoint", "it must not contain credentials: use OTEL_EXPORTER_OTLP_HEADERS"
        )


def check_origins(text: str | None) -> None:
    """Raise BadSetting for a malformed origin."""
    try:
        origins_in(text)
    except ValueError as error:
        raise BadSetting("--cors-origins", str(error)) from error


def checked_redis_url(flags: Shared) -> None:
    """Raise BadSetting if the URL is malformed or has a password, which other users could see."""
    if flags.redis_url is None:
        if flags.redis_password_file is not None:
            raise BadSetting("--redis-password-file", "it needs --redis-url")
        return
    try:
        url = urlsplit(flags.redis_url)
        _ = url.port
    except ValueError as error:
        raise BadSetting("--redis-url", f"it is not a URL: {error}") from error
    if not flags.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise BadSetting("--redis-url", "it must start with redis://, rediss:// or unix://")
    if url.password is not None or "password=" in url.query:
        raise BadSetting("--redis-url", "it must not contain a password: use --redis-password-file")


def checked_socket(socket: str) -> str:
    """Make a Unix socket's path absolute. Raises BadSetting for an invalid address."""
    if is_tcp(socket):
        return _checked_address(socket)
    path = str(Path(socket).absolute())
    _check_length("--socket", path)
    return path


def _check_length(flag: str, path: str) -> None:
    if len(path.encode()) >= MAX_SOCKET_BYTES:
        raise BadSetting(
            flag, f"{path} is too long: a Unix socket's path has less than {MAX_SOCKET_BYTES} bytes"
        )


def check_role(config: EngineConfig) -> None:
    """Raise BadSetting for a prefill engine from which no engine could fetch blocks."""
    if config.process.role == "prefill" and config.process.exchange is None:
        raise BadSetting("--role", "prefill needs --exchange, where others fetch what it computes")


def _checked_exchange(flags: EngineConfig, socket: str) -> str | None:
    exchange = flags.process.exchange
    if exchange is None:
        return None
    if flags.ranks.num_ranks > 1:
        raise BadSetting("--exchange", f"engines of several ranks {OF_RANKS}")
    try:
        address(exchange)
    except ValueError as error:
        raise BadSetting("--exchange", str(error)) from error
    if not is_tcp(exchange):
        path = str(Path(exchange).absolute())
        _check_length("--exchange", path)
        return path
    if not is_tcp(socket):
        raise BadSetting("--exchange", "over TCP it has the key of --socket tcp://HOST:PORT")
    _check_port(exchange, socket)
    return exchange


def _check_port(exchange: str, socket: str) -> None:
    (host, port), (its_host, its) = host_and_port(exchange), host_and_port(socket)
    is_its = port in (its, its + 1) and (host == its_host or {host, its_host} & set(EVERYWHERE))
    if is_its:
        raise BadSetting(
            "--exchange",
            f"{exchange}: port {port} is one of --socket, which has {its} and {its + 1}",
        )


def _checked_address(socket: str) -> str:
    try:
        address(socket)
    except ValueError as error:
        raise BadSetting("--socket", str(error)) from error
    return socket


def base_url(host: str, port: int) -> str:
    """Return the URL, on this machine, of a server that listens on `host`."""
    host = _EVERYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def admin_url(host: str, port: int, admin_host: str, admin_port: int | None) -> str:
    """Return the URL of the admin routes, on their own port if they have one."""
    return base_url(host, port) if admin_port is None else base_url(admin_host, admin_port)
