"""The tenants' names by id for the operator, remembered for some seconds.

A page that polls must not read every tenant from the state each time. A renamed tenant is shown
under its old name for RENEW_S seconds at most. A new tenant's name is known after RETRY_S.
"""

from collections.abc import Callable, Iterable

from gateway.errors import Unavailable
from gateway.state.records import PUBLISHED, Group, Tenant
from gateway.state.store import Records

RENEW_S = 30.0
RETRY_S = 2.0


class TenantNames:
    """The names of tenants and groups, for one process. `clock` returns seconds."""

    def __init__(self, store: Records, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._names = {PUBLISHED: "(published prefixes)"}
        self._read_at: float | None = None
        self.groups: dict[str, str] = {}

    async def known(self, ids: Iterable[str]) -> dict[str, str]:
        """Map tenants' ids to names, at least for these `ids`, except deleted tenants."""
        age = None if self._read_at is None else self._clock() - self._read_at
        is_new = not self._names.keys() >= set(ids)
        if age is None or age > RENEW_S or (is_new and age > RETRY_S):
            await self._renew()
        return self._names

    async def _renew(self) -> None:
        self._read_at = self._clock()
        try:
            tenants = await self._store.every(Tenant)
            groups = await self._store.every(Group)
        except Unavailable:
            return
        named = {tenant.id: tenant.name for tenant in tenants}
        self.groups = {group.id: group.name for group in groups}
        self._names = named | {PUBLISHED: self._names[PUBLISHED]}
