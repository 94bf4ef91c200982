"""A process's memory of values by tenant and key: for minutes, in no file, within limits.

Each tenant has its own memory. No value is found under another tenant's id. No tenant's values are
removed for values of a tenant that has more. Threads look values up, and the event loop adds them.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

_OVERHEAD = 1024  # approximate number of bytes of an entry's objects


class Sized(Protocol):
    """A value that can be remembered, of a known size."""

    @property
    def size(self) -> int:
        """The value's approximate size in bytes."""
        ...


T = TypeVar("T", bound=Sized)


@dataclass(slots=True)
class _Held(Generic[T]):
    value: T
    until: float
    size: int


class TenantMemory(Generic[T]):
    """A memory of values by tenant and key, the least recently used value first."""

    def __init__(
        self, of_tenant: int, of_all: int, life_s: float, clock: Callable[[], float]
    ) -> None:
        """Limit the bytes of each tenant's values and of all values.

        `clock` returns seconds.
        """
        self._most_of_tenant = min(of_tenant, of_all)
        self._most = of_all
        self._life_s = life_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, OrderedDict[bytes, _Held[T]]] = {}
        self._sizes: dict[str, int] = {}  # sizes of all of a tenant's values in bytes, by tenant
        self.size = 0

    @property
    def is_on(self) -> bool:
        """True if the memory stores any value at all."""
        return self._most_of_tenant > 0 and self._life_s > 0

    def tenants(self) -> set[str]:
        """Return the tenants with remembered values."""
        with self._lock:
            return set(self._sizes)

    def knows(self, tenant_id: str) -> bool:
        """Tell whether the tenant has remembered values."""
        return tenant_id in self._sizes

    def add(self, tenant_id: str, key: bytes, value: T) -> None:
        """Remember `value` under `key` in place of an older value, unless it is too large."""
        size = value.size + _OVERHEAD
        if size > self._most_of_tenant:
            return
        with self._lock:
            self._drop(tenant_id, key)
            values = self._held.setdefault(tenant_id, OrderedDict())
            values[key] = _Held(value, self._clock() + self._life_s, size)
            self._sizes[tenant_id] = self._sizes.get(tenant_id, 0) + size
            self.size += size
            while self._sizes[tenant_id] > self._most_of_tenant:
                self._drop_oldest(tenant_id)
            while self.size > self._most:
                self._drop_oldest(max(self._sizes, key=self._sizes.__getitem__))

    def find(self, tenant_id: str, key: bytes) -> T | None:
        """Return the value of `key`; None once the value's life is over."""
        with self._lock:
            values = self._held.get(tenant_id)
            held = None if values is None else values.get(key)
            return None if held is None or held.until <= self._clock() else held.value

    def latest(self, tenant_id: str, most: int) -> list[T]:
        """List the most recently used values, at most `most`, the most recent first."""
        with self._lock:
            now = self._clock()
            held = islice(reversed(self._held.get(tenant_id, OrderedDict()).values()), most)
            return [one.value for one in held if one.until > now]

    def use(self, tenant_id: str, key: bytes) -> None:
        """Restart a value's life. The value becomes the most recently used."""
        with self._lock:
            values = self._held.get(tenant_id)
            if values is not None and key in values:
                values[key].until = self._clock() + self._life_s
                values.move_to_end(key)

    def forget(self, tenant_id: str) -> None:
        """Remove all values of a tenant."""
        with self._lock:
            for key in list(self._held.get(tenant_id, ())):
                self._drop(tenant_id, key)

    def forget_all(self) -> None:
        """Remove all values of all tenants."""
        for tenant_id in self.tenants():
            self.forget(tenant_id)

    def forget_old(self) -> None:
        """Remove the values whose life is over."""
        with self._lock:
            now = self._clock()
            for tenant_id, values in list(self._held.items()):
                while values and next(iter(values.values())).until <= now:
                    self._drop_oldest(tenant_id)

    def _drop_oldest(self, tenant_id: str) -> None:
        self._drop(tenant_id, next(iter(self._held[tenant_id])))

    def _drop(self, tenant_id: str, key: bytes) -> None:
        values = self._held.get(tenant_id)
        if values is None or key not in values:
            return
        size = values.pop(key).size
        self.size -= size
        self._sizes[tenant_id] -= size
        if not values:
            del self._held[tenant_id], self._sizes[tenant_id]
