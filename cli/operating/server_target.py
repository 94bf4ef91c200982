"""The URL and key of a server: from flags, environment variables, or its data directory."""

from __future__ import annotations

from pathlib import Path

from cli.errors import BadSetting
from cli.options.gateway_options import GATEWAY_DEFAULTS
from cli.options.options import DEFAULT_DATA_DIR, AdminFlags, TargetFlags
from cli.serving.compose import admin_url, base_url
from cli.supervision.address import ServerAddress, running_server
from gateway.startup.first_start import ADMIN_KEY, DEMO_KEY, KEYS_FILE, read_keys
from gateway.state.private_file import PrivateFileError

_WHERE = "--data-dir or DATA_DIR names the directory of its server"


def admin_target(flags: AdminFlags) -> tuple[str, str]:
    """Return the URL and key of the admin routes. Raises BadSetting if either is unusable."""
    key = flags.admin_key or _key_of("--admin-key", ADMIN_KEY, flags.data_dir)
    key = _checked_key("--admin-key", key)
    return checked_url(flags.url or _admin_url(flags)), key


def load_target(flags: TargetFlags) -> tuple[str, str]:
    """Return the URL and key of the server to load. Raises BadSetting if either is unusable."""
    key = flags.key or _key_of("--key", DEMO_KEY, flags.data_dir)
    key = _checked_key("--key", key)
    return checked_url(flags.url or service_url(flags)), key


def _admin_url(flags: AdminFlags) -> str:
    given = (flags.host, flags.port, flags.admin_host, flags.admin_port)
    if given == (None,) * 4 and (running := _found(flags.data_dir)):
        return running.admin_url
    return admin_url(
        flags.host or GATEWAY_DEFAULTS.host,
        flags.port or GATEWAY_DEFAULTS.port,
        flags.admin_host or GATEWAY_DEFAULTS.admin_host,
        flags.admin_port,
    )


def service_url(flags: TargetFlags | AdminFlags) -> str:
    """Return the URL for tenants: of the server in the data directory, or from the flags."""
    if (flags.host, flags.port) == (None, None) and (running := _found(flags.data_dir)):
        return running.url
    return base_url(flags.host or GATEWAY_DEFAULTS.host, flags.port or GATEWAY_DEFAULTS.port)


def _found(data_dir: Path) -> ServerAddress | None:
    """Find the server that runs in the data directory, if there is one.

    Raises BadSetting if a server ran in the directory but has ended. That server's keys must not be
    sent to another server that now listens at the default address.
    """
    running = running_in(data_dir)
    if running is None and (data_dir != DEFAULT_DATA_DIR or (data_dir / KEYS_FILE).exists()):
        raise BadSetting("--data-dir", f"no server runs in {data_dir}; --url names one elsewhere")
    return running


def running_in(data_dir: Path) -> ServerAddress | None:
    """Find the server that runs in the data directory. Raises BadSetting for an untrusted file."""
    try:
        return running_server(data_dir)
    except PrivateFileError as error:
        raise BadSetting("--url", f"not given, and {error}") from error


def checked_url(url: str) -> str:
    """Strip the URL's last slash. Raises BadSetting for a scheme other than http or https."""
    if not url.startswith(("http://", "https://")):
        raise BadSetting("--url", f"{url} does not start with http:// or https://")
    return url.rstrip("/")


def _checked_key(flag: str, key: str) -> str:
    """Check that a header can carry the key. A key from a file may end with a newline."""
    if not (key.isascii() and key.isprintable()):
        raise BadSetting(
            flag, "a key has only printable ASCII characters; does it contain a newline?"
        )
    return key


def _key_of(flag: str, name: str, data_dir: Path) -> str:
    path = data_dir / KEYS_FILE
    try:
        keys = read_keys(path)
    except (PrivateFileError, OSError) as error:
        raise BadSetting(flag, f"not given, and {error}; {_WHERE}") from error
    if name not in keys:
        raise BadSetting(flag, f"not given, and {path} has no {name}")
    return keys[name]
