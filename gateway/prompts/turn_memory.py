"""The turns that were generated of late, so that a following request can have their very tokens.

They lie in the memory of this process, for minutes, and in no file. A tenant has its own: nothing
is found under another's id, and no tenant's turns make room for those of one that has more.
Threads look turns up, the event loop adds them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import Bounds
from gateway.prompts.said import Said
from gateway.prompts.splicing import Place
from gateway.prompts.tokenizer import TokenIds

_OVERHEAD = 1024  # bytes of an entry's objects, about


@dataclass(frozen=True, slots=True)
class GeneratedTurn:
    """A turn, and where it was generated."""

    begin: Place  # in the rendered chat
    before: bytes  # digest of the chat up to there
    token_ids: TokenIds  # of all from there on, without the token that ended it
    said: Said
    last_marker: str | None  # the last control token that the model wrote in it

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        said = self.said
        calls = sum(len(part) for call in said.calls for part in call)
        return self.token_ids.nbytes + 4 * (len(said.reasoning) + len(said.text) + calls)


@dataclass(slots=True)
class _Held:
    turn: GeneratedTurn
    until: float
    size: int


class TurnMemory:
    """Turns by tenant and by key, the least recently used first."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._most_of_tenant = min(bounds.max_tenant_turn_bytes, bounds.max_all_turn_bytes)
        self._most = bounds.max_all_turn_bytes
        self._life_s = bounds.turn_life_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, OrderedDict[bytes, _Held]] = {}
        self._sizes: dict[str, int] = {}  # of those that have turns
        self.size = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is remembered at all."""
        return self._most_of_tenant > 0 and self._life_s > 0

    def tenants(self) -> set[str]:
        """Those that have turns here."""
        with self._lock:
            return set(self._sizes)

    def knows(self, tenant_id: str) -> bool:
        """Whether the tenant has turns here."""
        return tenant_id in self._sizes

    def add(self, tenant_id: str, key: bytes, turn: GeneratedTurn) -> None:
        """Remember `turn`, in place of what had its key. One larger than the bound is not."""
        size = turn.size + _OVERHEAD
        if size > self._most_of_tenant:
            return
        with self._lock:
            self._drop(tenant_id, key)
            turns = self._held.setdefault(tenant_id, OrderedDict())
            turns[key] = _Held(turn, self._clock() + self._life_s, size)
            self._sizes[tenant_id] = self._sizes.get(tenant_id, 0) + size
            self.size += size
            while self._sizes[tenant_id] > self._most_of_tenant:
                self._drop_oldest(tenant_id)
            while self.size > self._most:
                self._drop_oldest(max(self._sizes, key=self._sizes.__getitem__))

    def find(self, tenant_id: str, key: bytes) -> GeneratedTurn | None:
        """The turn of that key; None once its life is over."""
        with self._lock:
            turns = self._held.get(tenant_id)
            held = None if turns is None else turns.get(key)
            return None if held is None or held.until <= self._clock() else held.turn

    def use(self, tenant_id: str, key: bytes) -> None:
        """Its life begins again; it goes last of what is there now."""
        with self._lock:
            turns = self._held.get(tenant_id)
            if turns is not None and key in turns:
                turns[key].until = self._clock() + self._life_s
                turns.move_to_end(key)

    def forget(self, tenant_id: str) -> None:
        """Drop all turns of a tenant."""
        with self._lock:
            for key in list(self._held.get(tenant_id, ())):
                self._drop(tenant_id, key)

    def forget_all(self) -> None:
        """Drop all turns of all tenants."""
        for tenant_id in self.tenants():
            self.forget(tenant_id)

    def forget_old(self) -> None:
        """Drop the turns whose life is over."""
        with self._lock:
            now = self._clock()
            for tenant_id, turns in list(self._held.items()):
                while turns and next(iter(turns.values())).until <= now:
                    self._drop_oldest(tenant_id)

    def _drop_oldest(self, tenant_id: str) -> None:
        self._drop(tenant_id, next(iter(self._held[tenant_id])))

    def _drop(self, tenant_id: str, key: bytes) -> None:
        turns = self._held.get(tenant_id)
        if turns is None or key not in turns:
            return
        size = turns.pop(key).size
        self.size -= size
        self._sizes[tenant_id] -= size
        if not turns:
            del self._held[tenant_id], self._sizes[tenant_id]
