"""`ratoon tenants keys`: the API keys of a tenant.

An issued key is printed once and alone on standard output, so that it can be piped.
"""

import re
import time
from functools import partial
from typing import Annotated, Any

import typer

from cli.echo import echo
from cli.errors import BadSetting
from cli.operating.admin_client import TENANTS
from cli.operating.tenancy.tenant_limits import TenantArgument
from cli.options.options import AdminFlags, argument
from cli.output import moment, print_json, print_rows

KeyArgument = Annotated[str, argument("KEY_ID", "See 'keys list'.")]
KEY_COLUMNS = ("id", "key", "state", "created", "expires")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def create(
    admin: AdminFlags,
    tenant: TenantArgument,
    expires_in: Annotated[
        str | None, typer.Option(help="How long the key works, such as 30d, 12h, 45m or 90s.")
    ] = None,
) -> None:
    """Issue a key. It is shown only once; the server stores a digest.

    Example:

        ratoon tenants keys create acme --expires-in 30d > acme.key
    """
    body: dict[str, float | None] = {"expires_at": None}
    if expires_in is not None:
        body["expires_at"] = time.time() + parse_duration("--expires-in", expires_in)
    _show_issued(admin, TENANTS.call(admin, "POST", tenant, "keys", body=body))


def list_all(admin: AdminFlags, tenant: TenantArgument) -> None:
    """List a tenant's keys by their ids; the keys themselves are not stored.

    Example:

        ratoon tenants keys list acme
    """
    keys = TENANTS.call(admin, "GET", tenant, "keys")["keys"]
    row = partial(key_row, now=time.time())
    print_rows(f"Keys of {tenant}", KEY_COLUMNS, keys, row, as_json=admin.json)


def rotate(
    admin: AdminFlags,
    tenant: TenantArgument,
    key_id: KeyArgument,
    overlap: Annotated[
        str | None, typer.Option(help="How long the old key still works, such as 10m.")
    ] = None,
) -> None:
    """Replace a key by a new one, which is shown only once.

    The old key stops working at once, or after --overlap, so that its users have time to switch.

    Example:

        ratoon tenants keys rotate acme key_1f2e --overlap 10m > acme.key
    """
    body = {} if overlap is None else {"overlap_s": parse_duration("--overlap", overlap)}
    issued = TENANTS.call(admin, "POST", tenant, "keys", key_id, "rotate", body=body)
    _show_issued(admin, issued)


def revoke(admin: AdminFlags, tenant: TenantArgument, key_id: KeyArgument) -> None:
    """Make a key invalid now.

    Example:

        ratoon tenants keys revoke acme key_1f2e
    """
    TENANTS.change(admin, "DELETE", tenant, "keys", key_id, said=f"Revoked {key_id}.")


def parse_duration(flag: str, text: str) -> float:
    """Read a duration such as 30d, 12h, 45m or 90s, in seconds. Raises BadSetting for others."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None or int(found[1]) == 0:
        raise BadSetting(flag, f"'{text}' is not a duration such as 30d, 12h, 45m or 90s")
    return float(int(found[1]) * _SECONDS[found[2]])


def _show_issued(admin: AdminFlags, issued: dict[str, Any]) -> None:
    if admin.json:
        print_json(issued)
        return
    echo(f"Key {issued['record']['id']}; it will not be shown again:", err=True)
    echo(issued["key"])


def key_row(key: dict[str, Any], now: float) -> tuple[str, ...]:
    """Write a key's row under `KEY_COLUMNS`. `now` is in seconds since the epoch."""
    return (
        key["id"],
        key.get("hint", ""),
        _state(key, now),
        moment(key.get("created_at")),
        moment(key.get("expires_at")),
    )


def _state(key: dict[str, Any], now: float) -> str:
    if key.get("revoked_at") is not None:
        return "revoked"
    expires_at = key.get("expires_at")
    return "expired" if expires_at is not None and expires_at <= now else "live"
