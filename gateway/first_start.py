"""The first start on a fresh machine: creates everything that a first request needs.

In this order: the data directory, the secrets, the store with the tenants `demo` and `demo2`,
and last `keys.env` with the operator's key and one key for each of the two. That file marks the
first start as done. A first start that was interrupted is continued by the next one: what exists
is kept, and a key that nobody has seen is replaced.

Several gateways on one Redis get their secrets and the operator's key from files (`Shared`). Each
makes its own `keys.env`, with the same keys in it: a demo key is derived from the secrets and its
tenant's id, so gateways that start at the same time agree, and starting again adds no key.

Knows: the order, and the format of `keys.env`. Does not know: environment variables (`cli`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.config import Shared
from gateway.errors import Conflict
from gateway.keyring import Keyring, key_digest, key_of
from gateway.private_file import FileDamaged, create_private, read_private, replace_private
from gateway.secrets import (
    Secrets,
    handed_in_admin_key,
    handed_in_secrets,
    load_or_create_secrets,
    load_secrets,
)
from gateway.state.home import STATE_FILE, open_home
from gateway.state.records import Tenant
from gateway.state.store import Store

KEYS_FILE = "keys.env"
ALONE = Shared()
ADMIN_KEY = "RATOON_ADMIN_KEY"
DEMO_KEY = "RATOON_DEMO_KEY"
DEMO2_KEY = "RATOON_DEMO2_KEY"

# Safe unquoted in a shell, and long enough that guessing is hopeless.
_ADMIN_KEY = re.compile(r"[A-Za-z0-9._+/=@:-]{16,256}")
_LINE = re.compile(r"(?:export )?([A-Z0-9_]+)=(\S+)")


class BadAdminKey(ValueError):
    """The given admin key is too short, or would need quotes in a shell."""


@dataclass(frozen=True, slots=True, repr=False)
class FirstStart:
    """The first keys. A demo key is None if the operator removed it from the file."""

    created: bool
    data_dir: Path
    keys_file: Path
    admin_key: str
    demo_key: str | None
    demo2_key: str | None

    def __repr__(self) -> str:
        return f"FirstStart(created={self.created}, keys_file={str(self.keys_file)!r})"


async def ensure_first_start(
    data_dir: Path,
    *,
    clock: Callable[[], float],
    admin_key: str | None = None,
    shared: Shared = ALONE,
) -> FirstStart:
    """Create what is missing of an installation in `data_dir`, and return its first keys.

    `admin_key`, or else the one in `shared.secrets_dir`, replaces the one in `keys.env`, so that
    every process that reads the file agrees. Raises BadAdminKey, PrivateFileError, SchemaTooNew
    or, if Redis is needed and does not answer, Unavailable.
    """
    if admin_key is None and shared.secrets_dir is not None:
        admin_key = handed_in_admin_key(Path(shared.secrets_dir))
    if admin_key is not None and not _ADMIN_KEY.fullmatch(admin_key):
        raise BadAdminKey(
            f"{ADMIN_KEY} must be 16 to 256 characters out of A-Z a-z 0-9 . _ + / = @ : -"
        )
    path = data_dir / KEYS_FILE
    created = not _is_done(data_dir) and await _create(data_dir, clock, admin_key, shared)
    find_secrets(data_dir, shared)  # fail now if they are missing: keys are useless without
    keys = read_keys(path)
    if admin_key is not None and keys[ADMIN_KEY] != admin_key:
        keys = {**keys, ADMIN_KEY: admin_key}
        replace_private(path, _format_keys(keys))
    return FirstStart(
        created, data_dir, path, keys[ADMIN_KEY], keys.get(DEMO_KEY), keys.get(DEMO2_KEY)
    )


def find_secrets(data_dir: Path, shared: Shared) -> Secrets:
    """The secrets of this installation; raises PrivateFileError or OSError."""
    if shared.secrets_dir is not None:
        return handed_in_secrets(Path(shared.secrets_dir))
    return load_secrets(data_dir)


def load_admin_key(data_dir: Path) -> str:
    """The operator's key; raises FileMissing, FileExposed or FileDamaged."""
    return read_keys(data_dir / KEYS_FILE)[ADMIN_KEY]


def admin_digest(pepper: bytes, admin_key: str) -> bytes:
    """What `AdminAuthenticator` compares with."""
    return key_digest(pepper, admin_key)


def read_keys(path: Path) -> dict[str, str]:
    """The `NAME=value` lines of `keys.env`; FileDamaged when the operator's key is not there."""
    lines = read_private(path).decode("ascii", "replace").splitlines()
    found = [_LINE.fullmatch(line.strip()) for line in lines]
    keys = {match[1]: match[2] for match in found if match}
    if not _ADMIN_KEY.fullmatch(keys.get(ADMIN_KEY, "")):
        raise FileDamaged(f"{path} has no valid {ADMIN_KEY}=... line")
    return keys


def _is_done(data_dir: Path) -> bool:
    """Whether an earlier start was completed. Creates the directory, with mode 0700."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return (data_dir / KEYS_FILE).exists()


def _secrets_of(data_dir: Path, shared: Shared) -> Secrets:
    """The secrets; created, unless there is a store: new secrets would invalidate its keys."""
    if shared.secrets_dir is not None:
        return handed_in_secrets(Path(shared.secrets_dir))
    if (data_dir / STATE_FILE).exists():
        return load_secrets(data_dir)
    return load_or_create_secrets(data_dir)


async def _create(
    data_dir: Path, clock: Callable[[], float], admin_key: str | None, shared: Shared
) -> bool:
    """Everything up to `keys.env`; False when another process was there first."""
    pepper = _secrets_of(data_dir, shared).pepper
    admin_key = admin_key or f"sk-admin-{secrets.token_urlsafe(32)}"
    seed = key_digest(pepper, f"demo keys\0{admin_key}")
    async with open_home(data_dir, shared) as home:
        keyring = Keyring(home.store, pepper, clock)
        keys = {
            ADMIN_KEY: admin_key,
            DEMO_KEY: await _demo_key(home.store, keyring, "demo", seed, clock),
            DEMO2_KEY: await _demo_key(home.store, keyring, "demo2", seed, clock),
        }
    return create_private(data_dir / KEYS_FILE, _format_keys(keys))


async def _demo_key(
    store: Store, keyring: Keyring, name: str, seed: bytes, clock: Callable[[], float]
) -> str:
    """A key for the tenant `name`; another start may already have created both."""
    with suppress(Conflict):
        await store.create_tenant(Tenant.new(name, created_at=clock()))
    tenant = next(tenant for tenant in await store.list_tenants() if tenant.name == name)
    bits = key_digest(seed, tenant.id)
    with suppress(Conflict):
        await keyring.issue(tenant.id, bits=bits)
    return key_of(bits)


def _format_keys(keys: dict[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in keys.items()).encode()
