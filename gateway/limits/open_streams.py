"""The limit on the choices that a tenant has running at once, with all its keys."""

from collections import Counter

from gateway.errors import TooManyRequests


class OpenStreams:
    """The running choices by tenant.

    A request counts as one choice until its number of choices is known.
    """

    def __init__(self, max_per_tenant: int) -> None:
        self._max_per_tenant = max_per_tenant
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.total()

    def take(self, tenant_id: str, choices: int) -> None:
        """Count `choices` as running; raise TooManyRequests if the tenant would have too many."""
        if self._open[tenant_id] + choices > self._max_per_tenant:
            raise TooManyRequests(
                f"a tenant may have {self._max_per_tenant} choices running at once",
                retry_after_s=1.0,
            )
        self._open[tenant_id] += choices

    def give_back(self, tenant_id: str, choices: int) -> None:
        """Subtract choices that have ended."""
        self._open[tenant_id] -= choices
        if not self._open[tenant_id]:
            del self._open[tenant_id]
