"""The loading and dropping of tenants' adapters, by the operator or by the tenant.

An adapter is read and checked by the engines, and stored with its tenant. From then on the tenant's
requests may name it. Other gateways may admit requests within seconds after a drop. These requests
are computed as before, in namespaces that no later request reaches.

Engines read one adapter at a time, and each tenant may ask the engines for one adapter at a time. A
tenant that loads many adapters therefore makes another tenant wait for at most one adapter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from engine.errors import EngineError
from engine.link.interface import Engine
from engine.link.query_messages import DropAdapter, ReadAdapter
from gateway.errors import Conflict, Forbidden, NotFound
from gateway.processes.tenant_turns import TenantTurns
from gateway.sharing.namespaces import Namespaces
from gateway.state.records import Tenant
from gateway.state.store import Records
from gateway.tenant_adapters import MOST_ADAPTERS, TenantAdapter
from prefix_cache.namespace import Namespace, adapted_fingerprint

LOAD_S = 60.0
MOST_WAITING = 8


@dataclass(frozen=True, slots=True)
class TenantAdapters:
    """The adapters of all tenants. `forget` makes the `Keyring` read a tenant's record again."""

    store: Records
    engine: Engine
    namespaces: Namespaces
    forget: Callable[[str], None]
    model_name: str
    clock: Callable[[], float]  # seconds since the epoch
    turns: TenantTurns = field(default_factory=partial(TenantTurns, MOST_WAITING))

    async def load(self, tenant_id: str, name: str, path: str) -> TenantAdapter:
        """Load the adapter at `path` for a tenant, in place of an adapter of the same name.

        Raises NotFound, Conflict, or EngineError if the engines cannot serve the adapter.
        """
        return await self._load(tenant_id, name, path, is_own=False)

    async def load_own(self, tenant_id: str, name: str, path: str) -> TenantAdapter:
        """Load an adapter for the tenant itself, from the folder that is named by its id.

        Raises Forbidden if the tenant may load no adapter, or no more adapters. Raises
        TooManyRequests if too many of the tenant's adapters wait, and the errors of `load`.
        """
        async with self.turns.of(tenant_id):
            _check_own((await self.store.get(Tenant, tenant_id)), name)
            return await self._load(tenant_id, name, f"{tenant_id}/{path}", is_own=True)

    async def _load(self, tenant_id: str, name: str, path: str, *, is_own: bool) -> TenantAdapter:
        if name == self.model_name:
            raise Conflict("this is the model's own name")
        tenant = await self.store.get(Tenant, tenant_id)
        read = await self.engine.ask(ReadAdapter(path=path, flow=tenant_id), LOAD_S)
        made = TenantAdapter(
            name=name,
            path=path,
            digest=read.digest.hex(),
            rank=read.rank,
            num_bytes=read.num_bytes,
            created_at=self.clock(),
            is_own=is_own,
            invocation=read.invocation,
        )

        def with_adapter(tenant: Tenant) -> Tenant:
            if is_own:
                _check_own(tenant, name)
            others = [one for one in tenant.adapters if one.name != name]
            if len(others) >= MOST_ADAPTERS:
                raise Conflict(f"the tenant has {MOST_ADAPTERS} adapters already")
            return replace(tenant, adapters=(*others, made))

        after = await self.store.update(Tenant, tenant_id, with_adapter)
        self.forget(tenant_id)
        replaced = next((one for one in tenant.adapters if one.name == name), None)
        if replaced is not None:
            await self._flush(after, replaced)
        return made

    async def drop(self, tenant_id: str, name: str, *, is_own: bool = False) -> int | None:
        """Drop a tenant's adapter. With `is_own` only an adapter that the tenant loaded itself.

        Returns the number of blocks that left the cache; None if no engine answered. Raises
        NotFound.
        """
        dropped: list[TenantAdapter] = []

        def without(tenant: Tenant) -> Tenant:
            dropped[:] = [one for one in tenant.adapters if one.name == name]
            if not dropped or (is_own and not dropped[0].is_own):
                raise NotFound("no such adapter")
            kept = tuple(one for one in tenant.adapters if one.name != name)
            return replace(tenant, adapters=kept)

        tenant = await self.store.update(Tenant, tenant_id, without)
        self.forget(tenant_id)
        return await self._flush(tenant, dropped[0])

    async def _flush(self, tenant: Tenant, adapter: TenantAdapter) -> int | None:
        """Drop the blocks of an adapter that the tenant no longer has, under any name."""
        if any(one.digest == adapter.digest for one in tenant.adapters):
            return 0
        welcome = self.engine.welcome
        if welcome is None:
            return None
        digest = bytes.fromhex(adapter.digest)
        fingerprint = adapted_fingerprint(welcome.fingerprint, digest)
        found = tuple(self._namespaces_of(tenant, fingerprint))
        try:
            asked = DropAdapter(digest=digest, flow=tenant.id, namespaces=found)
            return (await self.engine.ask(asked)).blocks
        except EngineError:
            return None  # no engine answered, but no request can reach the remaining KV blocks

    def _namespaces_of(self, tenant: Tenant, fingerprint: bytes) -> list[Namespace]:
        """Return the namespaces of an adapter's blocks, without the namespaces that have a salt."""
        found = [self.namespaces.of_tenant(tenant.id, fingerprint)]
        if tenant.group_id is not None:
            found.append(self.namespaces.of_group(tenant.group_id, fingerprint))
        return found


def _check_own(tenant: Tenant, name: str) -> None:
    if not tenant.max_own_adapters:
        raise Forbidden("this tenant may not load adapters", code="adapters_not_allowed")
    if any(one.name == name and not one.is_own for one in tenant.adapters):
        raise Conflict("the operator has loaded an adapter of this name")
    others = sum(one.is_own and one.name != name for one in tenant.adapters)
    if others >= tenant.max_own_adapters:
        raise Forbidden(
            f"this tenant may load {tenant.max_own_adapters} adapters, and has loaded them",
            code="too_many_adapters",
        )
