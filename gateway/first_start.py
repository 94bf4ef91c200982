"""The first start on a fresh machine: everything there to make a first call.

In this order: the data directory, the secrets, the store with the tenants `demo` and `demo2`,
and last `keys.env` with the operator's key and one key for each of the two. That file marks
the first start as done. A start that broke off before is taken up again: what is there is
kept, and a key that nobody ever saw is replaced by another.

Knows: the order, and the form of `keys.env`. Does not know: environment variables (`cli`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import Conflict
from gateway.keyring import Keyring, key_digest
from gateway.private_file import FileDamaged, create_private, read_private, replace_private
from gateway.secrets import Secrets, load_or_create_secrets, load_secrets
from gateway.state.records import Tenant
from gateway.state.sqlite import SqliteStore
from gateway.state.store import Store

KEYS_FILE = "keys.env"
STATE_FILE = "state.sqlite"
LIMITS_FILE = "limits.sqlite"
ADMIN_KEY = "RATOON_ADMIN_KEY"
DEMO_KEY = "RATOON_DEMO_KEY"
DEMO2_KEY = "RATOON_DEMO2_KEY"

# Safe unquoted in a shell, and long enough that guessing is hopeless.
_ADMIN_KEY = re.compile(r"[A-Za-z0-9._+/=@:-]{16,256}")
_LINE = re.compile(r"(?:export )?([A-Z0-9_]+)=(\S+)")


class BadAdminKey(ValueError):
    """The admin key that was given is too short or cannot stand in a shell line."""


@dataclass(frozen=True, slots=True, repr=False)
class FirstStart:
    """The keys to start with. A demo key is None when the operator took it out of the file."""

    created: bool
    data_dir: Path
    keys_file: Path
    admin_key: str
    demo_key: str | None
    demo2_key: str | None

    def __repr__(self) -> str:
        return f"FirstStart(created={self.created}, keys_file={str(self.keys_file)!r})"


async def ensure_first_start(
    data_dir: Path, *, clock: Callable[[], float], admin_key: str | None = None
) -> FirstStart:
    """Make what is missing of an installation in `data_dir` and return its first keys.

    `admin_key` wins over the one in `keys.env` and is written there, so that every process
    that reads the file agrees. Raises BadAdminKey, PrivateFileError or SchemaTooNew.
    """
    if admin_key is not None and not _ADMIN_KEY.fullmatch(admin_key):
        raise BadAdminKey(
            f"{ADMIN_KEY} must be 16 to 256 characters out of A-Z a-z 0-9 . _ + / = @ : -"
        )
    path = data_dir / KEYS_FILE
    created = not _is_done(data_dir) and await _create(data_dir, clock, admin_key)
    load_secrets(data_dir)  # keys without their pepper are no keys: say so now
    keys = read_keys(path)
    if admin_key is not None and keys[ADMIN_KEY] != admin_key:
        keys = {**keys, ADMIN_KEY: admin_key}
        replace_private(path, _format_keys(keys))
    return FirstStart(
        created, data_dir, path, keys[ADMIN_KEY], keys.get(DEMO_KEY), keys.get(DEMO2_KEY)
    )


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
    """Whether an earlier start came to its end. Makes the directory, open to its owner alone."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return (data_dir / KEYS_FILE).exists()


def _secrets_of(data_dir: Path) -> Secrets:
    """The secrets, made now unless a store is there, whose keys new ones would make unknown."""
    if (data_dir / STATE_FILE).exists():
        return load_secrets(data_dir)
    return load_or_create_secrets(data_dir)


async def _create(data_dir: Path, clock: Callable[[], float], admin_key: str | None) -> bool:
    """Everything up to `keys.env`; False when another process was there first."""
    pepper = _secrets_of(data_dir).pepper
    store = SqliteStore(data_dir / STATE_FILE)
    try:
        keyring = Keyring(store, pepper, clock)
        keys = {
            ADMIN_KEY: admin_key or f"sk-admin-{secrets.token_urlsafe(32)}",
            DEMO_KEY: await _demo_key(store, keyring, "demo", clock),
            DEMO2_KEY: await _demo_key(store, keyring, "demo2", clock),
        }
    finally:
        await store.close()
    return create_private(data_dir / KEYS_FILE, _format_keys(keys))


async def _demo_key(store: Store, keyring: Keyring, name: str, clock: Callable[[], float]) -> str:
    """A key for the tenant `name`, which an earlier start may have made already."""
    with suppress(Conflict):
        await store.create_tenant(Tenant.new(name, created_at=clock()))
    tenant = next(tenant for tenant in await store.list_tenants() if tenant.name == name)
    return (await keyring.issue(tenant.id)).secret


def _format_keys(keys: dict[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in keys.items()).encode()
