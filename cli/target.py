"""Finds the server and the key of a client command whose flags do not give them.

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
    """URL and key of the admin routes; BadSetting if there is no key or the URL is malformed."""
    url = flags.url or admin_url(flags.host, flags.port, flags.admin_host, flags.admin_port)
    key = flags.admin_key or _key_of("--admin-key", ADMIN_KEY, flags.data_dir)
    return checked_url(url), _checked_key("--admin-key", key)


def load_target(flags: TargetFlags) -> tuple[str, str]:
    """URL and key of the server to load; BadSetting if there is no key or the URL is malformed."""
    url = flags.url or base_url(flags.host, flags.port)
    key = flags.key or _key_of("--key", DEMO_KEY, flags.data_dir)
    return checked_url(url), _checked_key("--key", key)


def checked_url(url: str) -> str:
    """The URL without its last slash; BadSetting when it is not http or https."""
    if not url.startswith(("http://", "https://")):
        raise BadSetting("--url", f"{url} does not start with http:// or https://")
    return url.rstrip("/")


def _checked_key(flag: str, key: str) -> str:
    """The key, if a header can carry it; one from a file may end with a newline."""
    if not (key.isascii() and key.isprintable()):
        raise BadSetting(
            flag, "a key has only printable ASCII characters; does it contain a newline?"
        )
    return key


def _key_of(flag: str, name: str, data_dir: Path) -> str:
    """The key called `name` in `keys.env`; BadSetting if there is none."""
    path = data_dir / KEYS_FILE
    try:
        keys = read_keys(path)
    except (PrivateFileError, OSError) as error:
        raise BadSetting(flag, f"not given, and {error}; --data-dir names its directory") from error
    if name not in keys:
        raise BadSetting(flag, f"not given, and {path} has no {name}")
    return keys[name]
