"""Finds the server and the key that a client command means when its flags leave them out.

Knows: the order of flag, variable, default and `keys.env`. Does not know: HTTP.
"""

from __future__ import annotations

from pathlib import Path

from cli.client_options import AdminFlags, TargetFlags
from cli.compose import admin_url, base_url
from cli.errors import BadSetting
from gateway.first_start import ADMIN_KEY, DEMO_KEY, KEYS_FILE, read_keys
from gateway.private_file import PrivateFileError


def admin_target(flags: AdminFlags) -> tuple[str, str]:
    """URL and key of the admin routes; BadSetting when there is no key or the URL is none."""
    url = flags.url or admin_url(flags.host, flags.port, flags.admin_host, flags.admin_port)
    return checked_url(url), flags.admin_key or _key_of("--admin-key", ADMIN_KEY, flags.data_dir)


def load_target(flags: TargetFlags) -> tuple[str, str]:
    """URL and key of the server to load; BadSetting when there is no key or the URL is none."""
    url = flags.url or base_url(flags.host, flags.port)
    return checked_url(url), flags.key or _key_of("--key", DEMO_KEY, flags.data_dir)


def checked_url(url: str) -> str:
    """The URL without its last slash; BadSetting when it is not http or https."""
    if not url.startswith(("http://", "https://")):
        raise BadSetting("--url", f"{url} does not start with http:// or https://")
    return url.rstrip("/")


def _key_of(flag: str, name: str, data_dir: Path) -> str:
    """The key called `name` in `keys.env`; BadSetting when it is not to be had."""
    path = data_dir / KEYS_FILE
    try:
        keys = read_keys(path)
    except (PrivateFileError, OSError) as error:
        raise BadSetting(flag, f"not given, and {error}; --data-dir names its directory") from error
    if name not in keys:
        raise BadSetting(flag, f"not given, and {path} has no {name}")
    return keys[name]
