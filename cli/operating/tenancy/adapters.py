"""`ratoon adapters`: the LoRA adapters that a tenant's requests may name as their model."""

from typing import Annotated, Any

from cli.operating.admin_client import TENANTS
from cli.operating.tenancy.tenant_limits import TenantArgument
from cli.options.options import AdminFlags, argument
from cli.output import moment, print_answer, print_rows

_COLUMNS = ("name", "path", "rank", "MB", "digest", "loaded by", "created")
NameArgument = Annotated[str, argument("NAME", "The name that requests give as model.")]


def load(
    admin: AdminFlags,
    tenant: TenantArgument,
    name: NameArgument,
    path: Annotated[
        str, argument("PATH", "The adapter's folder, below the engine's --adapters-dir.")
    ],
) -> None:
    """Load a PEFT adapter for a tenant, in place of an adapter of the same name.

    Example:

        ratoon adapters load acme support acme/support-v3
    """
    body = {"name": name, "path": path}
    made = TENANTS.call(admin, "POST", tenant, "adapters", body=body)
    said = f"Loaded {name} for tenant {tenant}: rank {made['rank']}."
    print_answer(made, said, as_json=admin.json)


def list_all(admin: AdminFlags, tenant: TenantArgument) -> None:
    """List a tenant's adapters.

    Example:

        ratoon adapters list acme
    """
    adapters = TENANTS.call(admin, "GET", tenant, "adapters")["adapters"]
    print_rows(f"Adapters of {tenant}", _COLUMNS, adapters, _row, as_json=admin.json)


def drop(admin: AdminFlags, tenant: TenantArgument, name: NameArgument) -> None:
    """Drop a tenant's adapter, and the blocks that were computed with it.

    Example:

        ratoon adapters drop acme support
    """
    said = f"Dropped {name} of tenant {tenant}."
    TENANTS.change(admin, "DELETE", tenant, "adapters", name, said=said)


def allow(
    admin: AdminFlags,
    tenant: TenantArgument,
    count: Annotated[int, argument("COUNT", "How many adapters; 0: none.")],
) -> None:
    """Let a tenant load adapters itself, from the folder that is named by its id.

    Example:

        ratoon adapters allow acme 4
    """
    said = f"Tenant {tenant} may load {count} adapters."
    TENANTS.change(admin, "PATCH", tenant, body={"max_own_adapters": count}, said=said)


def _row(adapter: dict[str, Any]) -> tuple[str, ...]:
    return (
        adapter["name"],
        adapter["path"],
        str(adapter["rank"]),
        f"{adapter['num_bytes'] / 1e6:.1f}",
        adapter["digest"][:12],
        "tenant" if adapter["is_own"] else "operator",
        moment(adapter["created_at"]),
    )
