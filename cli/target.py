"""Finds the server and the key that a client command means when its flags leave them out.

Knows: the order of flag, variable, default and `keys.env`. Does not know: HTTP.
"""

from __future__ import annotations

from cli.client_options import AdminFlags, TargetFlags
from cli.compose import admin_url, base_url
from cli.errors import BadSetting
from cli.keys_env import ADMIN_KEY, DEMO_KEY, find_key, keys_path


def admin_target(flags: AdminFlags) -> tuple[str, str]:
    """URL and key of the admin routes; BadSetting when there is no key or the URL is none."""
    url = flags.url or admin_url(flags.host, flags.port, flags.admin_host, flags.admin_port)
    key = flags.admin_key or find_key(flags.data_dir, ADMIN_KEY)
    if key is None:
        raise _no_key("--admin-key", ADMIN_KEY, flags)
    return checked_url(url), key


def load_target(flags: TargetFlags) -> tuple[str, str]:
    """URL and key of the server to load; BadSetting when there is no key or the URL is none."""
    url = flags.url or base_url(flags.host, flags.port)
    key = flags.key or find_key(flags.data_dir, DEMO_KEY)
    if key is None:
        raise _no_key("--key", DEMO_KEY, flags)
    return checked_url(url), key


def checked_url(url: str) -> str:
    """The URL without its last slash; BadSetting when it is not http or https."""
    if not url.startswith(("http://", "https://")):
        raise BadSetting("--url", f"{url} does not start with http:// or https://")
    return url.rstrip("/")


def _no_key(flag: str, name: str, flags: AdminFlags | TargetFlags) -> BadSetting:
    return BadSetting(
        flag,
        f"not given, and there is no {name} in {keys_path(flags.data_dir)}; name the key, or "
        "the server's data directory with --data-dir",
    )
