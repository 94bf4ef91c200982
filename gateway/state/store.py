"""The protocol that every home of the state keeps; one contract suite runs against all of them.

Methods are coroutines. A missing id raises `NotFound`, a taken name raises `Conflict`
(`gateway.errors`). Deleting a tenant deletes its keys.
"""

from __future__ import annotations

from typing import Protocol

from gateway.state.records import ApiKey, Tenant


class Store(Protocol):
    """Tenants and keys."""

    async def create_tenant(self, tenant: Tenant) -> None:
        """Add a tenant; Conflict when its id or name is taken."""
        ...

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, oldest first."""
        ...

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """One tenant by id."""
        ...

    async def update_tenant(self, tenant: Tenant) -> None:
        """Replace a tenant's record."""
        ...

    async def delete_tenant(self, tenant_id: str) -> None:
        """Remove a tenant and its keys."""
        ...

    async def create_key(self, key: ApiKey) -> None:
        """Add a key to an existing tenant."""
        ...

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """A tenant's keys, oldest first."""
        ...

    async def get_key(self, key_id: str) -> ApiKey:
        """One key by id."""
        ...

    async def update_key(self, key: ApiKey) -> None:
        """Replace a key's expiry and revocation; a revocation once stored stays.

        So a rotation that read the record before a revocation cannot bring the key back.
        """
        ...

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        """The key with this digest and its tenant; None when no such key was ever made."""
        ...

    async def close(self) -> None:
        """Give back what the store holds open."""
        ...
