"""The first start on a fresh machine, which creates all files that a first request needs.

The first start creates the data directory, the secrets, and the store with the tenants `demo` and
`demo2`. Last it creates `keys.env`, which marks the first start as done. The file has the
operator's key, a key of each demo tenant, and a key for `/metrics`. An older file gets the key for
`/metrics` at the next start. A first start that was interrupted is continued by the next start. The
next start keeps existing files and replaces keys that were never shown.

Several gateways on one Redis get their secrets and the operator's key from files (`Shared`). Each
gateway makes its own `keys.env` with the same keys. A demo key is derived from the secrets and its
tenant's id. Gateways that start at the same time therefore agree, and starting again adds no key.
"""

import base64
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.auth.keyring import RANDOM_BYTES, Keyring, key_digest
from gateway.auth.secrets import (
    Secrets,
    handed_in_admin_key,
    handed_in_secrets,
    load_or_create_secrets,
    load_secrets,
)
from gateway.config import Shared
from gateway.errors import Conflict
from gateway.startup.new_state import accept_new_state
from gateway.state.home import STATE_FILE, Home, open_home
from gateway.state.identity import KEYS_FILE as KEYS_FILE
from gateway.state.identity import WrongState
from gateway.state.private_file import (
    PrivateFileDamaged,
    create_private,
    read_private,
    replace_private,
)
from gateway.state.records import Tenant
from gateway.state.store import Store
from gateway.tenant_limits import CacheQuota, Limits

ALONE = Shared()
ADMIN_KEY = "RATOON_ADMIN_KEY"
DEMO_KEY = "RATOON_DEMO_KEY"
DEMO2_KEY = "RATOON_DEMO2_KEY"
METRICS_KEY = "RATOON_METRICS_KEY"

# `demo2` shows a second tenant, but most people use only `demo`. If tenants have partitions of the
# cache, an unlimited `demo2` would take half of the cache from `demo`, and keep room for a request
# as long as the model's context.
_SMALL, _SHORT = CacheQuota(ceiling=0.1), Limits(max_request_tokens=32_768)

# The characters are safe unquoted in a shell, and the length makes guessing hopeless.
_ADMIN_KEY = re.compile(r"[A-Za-z0-9._+/=@:-]{16,256}")
_UNFIT = ("state_missing", "state_evicts")
_LINE = re.compile(r"(?:export )?([A-Z0-9_]+)=(\S+)")


class BadAdminKey(ValueError):
    """The error of an admin key that is too short, or would need quotes in a shell."""


@dataclass(frozen=True, slots=True, repr=False)
class FirstStart:
    """The first keys of an installation. A demo key is None if the operator removed it."""

    created: bool
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
    new_state: bool = False,
) -> FirstStart:
    """Create the missing files of an installation in `data_dir`, and return its first keys.

    `admin_key`, or else the key in `shared.secrets_dir`, replaces the operator's key in `keys.env`.
    Every process then reads the same key. `new_state` accepts a state that is empty, gone, damaged
    or exchanged. An empty state gets new demo tenants. Raises BadAdminKey, PrivateFileError,
    SchemaTooNew, WrongState or DatabaseFault. If Redis is needed and does not answer, raises
    Unavailable.
    """
    if admin_key is None and shared.secrets_dir is not None:
        admin_key = handed_in_admin_key(Path(shared.secrets_dir))
    if admin_key is not None and not _ADMIN_KEY.fullmatch(admin_key):
        raise BadAdminKey(
            f"{ADMIN_KEY} must be 16 to 256 characters out of A-Z a-z 0-9 . _ + / = @ : -"
        )
    path = data_dir / KEYS_FILE
    is_done, created = _is_done(data_dir), False
    if new_state:
        await accept_new_state(data_dir, shared)
    if is_done:
        await _confirm(data_dir, clock, shared, new_state)
    else:
        created = await _create(data_dir, clock, admin_key, shared)
    # Raises an error now if the secrets are missing, since keys are useless without secrets.
    pepper = find_secrets(data_dir, shared).pepper
    keys = read_keys(path)
    named = keys | {ADMIN_KEY: admin_key or keys[ADMIN_KEY]}
    named[METRICS_KEY] = metrics_key(pepper, named[ADMIN_KEY])
    if named != keys:
        keys = named
        replace_private(path, _format_keys(keys))
    return FirstStart(created, path, keys[ADMIN_KEY], keys.get(DEMO_KEY), keys.get(DEMO2_KEY))


def find_secrets(data_dir: Path, shared: Shared) -> Secrets:
    """Read the installation's secrets; raise PrivateFileError or OSError."""
    if shared.secrets_dir is not None:
        return handed_in_secrets(Path(shared.secrets_dir))
    return load_secrets(data_dir)


def metrics_key(pepper: bytes, admin_key: str) -> str:
    """Derive the key for `/metrics` alone from the secrets and the operator's key."""
    made = key_digest(pepper, f"metrics\0{admin_key}")
    return f"sk-metrics-{base64.urlsafe_b64encode(made).rstrip(b'=').decode()}"


def load_admin_key(data_dir: Path) -> str:
    """Read the operator's key; raise FileMissing, FileExposed or PrivateFileDamaged."""
    return read_keys(data_dir / KEYS_FILE)[ADMIN_KEY]


def read_keys(path: Path) -> dict[str, str]:
    """Read the `export NAME=value` lines of `keys.env`. Old files' lines have no `export`.

    Raises PrivateFileDamaged if the operator's key is missing.
    """
    lines = read_private(path).decode("ascii", "replace").splitlines()
    found = [_LINE.fullmatch(line.strip()) for line in lines]
    keys = {match[1]: match[2] for match in found if match}
    if not _ADMIN_KEY.fullmatch(keys.get(ADMIN_KEY, "")):
        raise PrivateFileDamaged(f"{path} has no valid {ADMIN_KEY}=... line")
    return keys


def _is_done(data_dir: Path) -> bool:
    """Create a missing directory (0700). Return whether an earlier start was completed."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return (data_dir / KEYS_FILE).exists()


def _secrets_of(data_dir: Path, shared: Shared) -> Secrets:
    """Create the secrets. If a store exists, read them, since new secrets would void its keys."""
    if shared.secrets_dir is None and not (data_dir / STATE_FILE).exists():
        return load_or_create_secrets(data_dir)
    return find_secrets(data_dir, shared)


async def _create(
    data_dir: Path, clock: Callable[[], float], admin_key: str | None, shared: Shared
) -> bool:
    """Create all files up to `keys.env`; return False if another process was first."""
    pepper = _secrets_of(data_dir, shared).pepper
    admin_key = admin_key or f"sk-admin-{secrets.token_urlsafe(32)}"
    async with open_home(data_dir, shared) as home:
        await _refuse_unfit(home, shared)
        keys = await _first_keys(home.store, pepper, admin_key, clock)
    return create_private(data_dir / KEYS_FILE, _format_keys(keys))


async def _confirm(
    data_dir: Path, clock: Callable[[], float], shared: Shared, new_state: bool
) -> None:
    """Check that the state exists, while the operator can see the error; raise WrongState.

    The gateway itself reports a damaged state, and a Redis that does not answer. If an accepted new
    state is empty, it gets demo tenants, and `keys.env` gets their keys.
    """
    async with open_home(data_dir, shared, new_state=new_state) as home:
        await _refuse_unfit(home, shared)
        if new_state and not await home.store.every(Tenant):
            pepper = find_secrets(data_dir, shared).pepper
            keys = await _first_keys(home.store, pepper, load_admin_key(data_dir), clock)
            replace_private(data_dir / KEYS_FILE, _format_keys(keys))


async def _refuse_unfit(home: Home, shared: Shared) -> None:
    if shared.redis_url is not None:
        # only Redis is checked now, since a file was checked when it was opened
        await home.watched.check()
    fault = home.watched.fault
    if fault is not None and fault.status in _UNFIT:
        raise WrongState(fault)


async def _first_keys(
    store: Store, pepper: bytes, admin_key: str, clock: Callable[[], float]
) -> dict[str, str]:
    """Write the content of `keys.env` for the demo tenants, which are created if missing."""
    keyring = Keyring(store, pepper, clock)
    seed = key_digest(pepper, f"demo keys\0{admin_key}")
    return {
        ADMIN_KEY: admin_key,
        DEMO_KEY: await _demo_key(store, keyring, "demo", seed, clock),
        DEMO2_KEY: await _demo_key(
            store, keyring, "demo2", seed, clock, cache=_SMALL, limits=_SHORT
        ),
    }


async def _demo_key(
    store: Store,
    keyring: Keyring,
    name: str,
    seed: bytes,
    clock: Callable[[], float],
    **fields: CacheQuota | Limits,
) -> str:
    """Issue a key for a tenant with these fields.

    Another start may have made the tenant and the key already.
    """
    with suppress(Conflict):
        new = Tenant.new(name, created_at=clock())
        await store.create(msgspec.structs.replace(new, **fields))
    tenant = next(tenant for tenant in await store.every(Tenant) if tenant.name == name)
    bits = key_digest(seed, tenant.id)[:RANDOM_BYTES]
    with suppress(Conflict):
        await keyring.issue(tenant.id, bits=bits)
    return keyring.key_with_mark(bits)


def _format_keys(keys: dict[str, str]) -> bytes:
    return "".join(f"export {name}={value}\n" for name, value in keys.items()).encode()
