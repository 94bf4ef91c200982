"""`ratoon tenants keys`: the keys that a tenant's requests carry.

An issued key is printed once and alone on standard output, so that it can be piped.

Knows: the admin routes of keys. Does not know: how a key is made or stored (`gateway`).
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.errors import BadSetting
from cli.output import moment, print_answer, print_json, print_table
from cli.tenants import TenantArgument, find_tenant, tenant_path

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY_ID", help="See 'keys list'.", show_default=False)
]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def create(
    admin: AdminFlags,
    tenant: TenantArgument,
    expires_in: Annotated[
        str | None, typer.Option(help="How long it works, such as 30d, 12h, 45m or 90s.")
    ] = None,
) -> None:
    """Issue a key. It is shown only once; the server stores a digest.

    Example:

        ratoon tenants keys create acme --expires-in 30d > acme.key
    """
    expires_at = (
        None if expires_in is None else time.time() + parse_duration("--expires-in", expires_in)
    )

    async def use(client: AdminClient) -> Any:
        path = tenant_path(await find_tenant(client, tenant), "keys")
        return await client.call("POST", path, {"expires_at": expires_at})

    _show_issued(admin, with_admin(admin, use))


def list_all(admin: AdminFlags, tenant: TenantArgument) -> None:
    """List a tenant's keys by their ids; the keys themselves are not stored.

    Example:

        ratoon tenants keys list acme
    """

    async def use(client: AdminClient) -> list[dict[str, Any]]:
        return await client.rows(tenant_path(await find_tenant(client, tenant), "keys"), "keys")

    keys = with_admin(admin, use)
    if admin.json:
        print_json(keys)
        return
    now = time.time()
    print_table(
        f"Keys of {tenant}",
        ("id", "key", "state", "created", "expires"),
        (_row(key, now) for key in keys),
    )


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

    async def use(client: AdminClient) -> Any:
        tenant_id = await find_tenant(client, tenant)
        return await client.call("POST", tenant_path(tenant_id, "keys", key_id, "rotate"), body)

    _show_issued(admin, with_admin(admin, use))


def revoke(admin: AdminFlags, tenant: TenantArgument, key_id: KeyArgument) -> None:
    """Make a key invalid now.

    Example:

        ratoon tenants keys revoke acme key_1f2e
    """

    async def use(client: AdminClient) -> Any:
        tenant_id = await find_tenant(client, tenant)
        return await client.call("DELETE", tenant_path(tenant_id, "keys", key_id))

    answer = with_admin(admin, use)
    print_answer(answer, f"Revoked {key_id}.", as_json=admin.json)


def parse_duration(flag: str, text: str) -> float:
    """Seconds of a duration such as 30d, 12h, 45m or 90s; BadSetting for anything else."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None or int(found[1]) == 0:
        raise BadSetting(flag, f"'{text}' is not a duration such as 30d, 12h, 45m or 90s")
    return float(int(found[1]) * _SECONDS[found[2]])


def _show_issued(admin: AdminFlags, issued: dict[str, Any]) -> None:
    if admin.json:
        print_json(issued)
        return
    typer.echo(f"Key {issued['record']['id']}; it will not be shown again:", err=True)
    typer.echo(issued["key"])


def _row(key: dict[str, Any], now: float) -> tuple[str, ...]:
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
