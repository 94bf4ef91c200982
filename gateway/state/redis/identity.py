"""The link to this installation's state in Redis, which never reaches another state.

Redis stores the state's id with the state, and every command also asks for the id. The first
command to a Redis that lost or exchanged its state therefore notices this, and changes nothing.
When the right state is back, commands work again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.errors import StateLost, Unavailable
from gateway.processes.tenant_turns import TenantTurns
from gateway.state.faults import Fault, evicts, gone, no_room
from gateway.state.identity import ExpectedState, WrongState
from gateway.state.redis import keys as at
from gateway.state.redis.large import LargeLink
from gateway.state.redis.link import NoAnswer, RedisLink, Script
from gateway.state.redis.make_room import MAKE_ROOM
from gateway.state.redis.transaction import NO_ROOM, SCRIPT, Changed, Transaction, with_room

MISSING = "state_missing"
REDIS = "the state in Redis"
_ASK = ("GET", at.STATE_ID)
_KEEPS_ALL = "noeviction"
_SMALL = 16 << 10  # maximum bytes of a small change; a larger change is sent over the large link


class _Scripts(NamedTuple):
    small: Script
    large: Script

    @classmethod
    def of(cls, source: str, link: RedisLink, large: RedisLink) -> _Scripts:
        return cls(link.script(source), large.script(source))


class StateLink:
    """A link whose commands reach only the `expected` state. Other states raise StateLost.

    Large changes are sent over a second link. A command that is given its answer's `size` in bytes
    is also sent over that link. Callers must give a size (or `large.UNSIZED`) unless a limit keeps
    the answer small. `remember` is called with the state's id once the id is known.
    """

    def __init__(
        self, link: RedisLink, expected: ExpectedState, remember: Callable[[str], None]
    ) -> None:
        self._link = link
        self._expected = expected
        self._remember = remember
        self._large = LargeLink(link)
        self._scripts = _Scripts.of(SCRIPT, link, self._large)
        self._scripts_with_room = _Scripts.of(with_room(MAKE_ROOM), link, self._large)
        self._turns = TenantTurns()
        self._id: str | None = None
        self._lost: Fault | None = None
        self._evicts: Fault | None = None
        # whether Redis may still tell its eviction policy; False once it has refused
        self._tells_policy = True

    @property
    def fault(self) -> Fault | None:
        """The fault that Redis had when it last answered."""
        return self._lost or self._evicts or (no_room("Redis") if self._is_full else None)

    async def check(self) -> None:
        """Check the state's id and Redis' eviction policy. If Redis was full, try a write."""
        try:
            await self._settle()
            await self._look_for_eviction()
            if self._is_full and self._lost is None:
                await self._link.command("SET", at.WRITABLE, "1")
                self._link.is_full = self._large.is_full = False
        except Unavailable:
            return  # Redis is away, lost or still full, which `fault` and the link report

    def turn_of(self, tenant_id: str | None) -> AbstractAsyncContextManager[None]:
        """Return a context that waits for the tenant's turn. Its large calls run one at a time."""
        return self._turns.of(tenant_id)

    async def command(self, *words: Any, size: int = 0) -> Any:
        """Send one command to Redis; return its reply."""
        return (await self.commands([words], size=size))[0]

    async def commands(self, commands: Sequence[Sequence[Any]], *, size: int = 0) -> list[Any]:
        """Send many commands to Redis in few round trips, not atomically; return their replies."""
        state_id = await self._known()
        link = self._large if size else self._link
        found, *replies = await link.commands([_ASK, *commands], size)
        if _text(found) != state_id:
            await self._settle()
            raise StateLost(MISSING)
        return replies

    async def apply(self, transaction: Transaction) -> None:
        """Apply `transaction`; raise the error of the first failed expectation, or Changed."""
        arguments = transaction.arguments([*_ASK], await self._known())
        await self._raise_failed(transaction, await self._run(self._scripts, arguments))

    async def apply_with_room(self, transaction: Transaction, room: Sequence[str | bytes]) -> bool:
        """Make room as `room` says (arguments from `response_room`), then apply `transaction`.

        Returns False, without applying `transaction`, if there is still too little room. Raises the
        errors of `apply`.
        """
        arguments = transaction.arguments([*_ASK], await self._known(), room)
        found = await self._run(self._scripts_with_room, arguments)
        if found != NO_ROOM:
            await self._raise_failed(transaction, found)
        return found != NO_ROOM

    async def _run(self, scripts: _Scripts, arguments: list[str | bytes]) -> int:
        size = sum(map(len, arguments))
        if size > _SMALL:
            found = await scripts.large([], arguments, size)
        else:
            found = await scripts.small([], arguments)
        return int(found)

    async def _raise_failed(self, transaction: Transaction, failed: int) -> None:
        """Raise the error of the condition with this number, counted from 1 (0: none failed)."""
        if failed == 1:
            await self.check()
            raise StateLost(MISSING)
        if failed:
            raise transaction.error_of(failed - 1) or Changed()

    async def close(self) -> None:
        """Close all connections to Redis."""
        await self._large.close()
        await self._link.close()

    @property
    def _is_full(self) -> bool:
        return self._link.is_full or self._large.is_full

    async def _known(self) -> str:
        if self._id is None or self._lost is not None:
            return await self._settle()
        return self._id

    async def _look_for_eviction(self) -> None:
        """Record whether Redis may drop records. A Redis that hides its policy is trusted."""
        if not self._tells_policy:
            return
        try:
            told = await self._link.command("INFO", "memory")
        except NoAnswer:
            return
        except Unavailable:
            self._tells_policy = False
            return
        policy = str(told.get("maxmemory_policy", _KEEPS_ALL))
        may_evict = policy != _KEEPS_ALL and told.get("maxmemory") != 0
        self._evicts = evicts(policy) if may_evict else None

    async def _settle(self) -> str:
        found, records = await self._link.commands([_ASK, ("EXISTS", at.TENANTS, at.KEYS)])
        try:
            settled = self._settled(found, is_empty=not records)
        except WrongState as error:
            self._lost = error.fault
            raise StateLost(MISSING) from error
        if found is None:
            await self._link.command("SET", at.STATE_ID, settled, "NX")
            # another gateway may have set the id first
            settled = _text(await self._link.command(*_ASK)) or settled
        if self._id != settled:
            self._remember(settled)
        self._id, self._lost = settled, None
        self._expected = replace(self._expected, id=settled, was_there=True)
        return settled

    def _settled(self, found: bytes | None, *, is_empty: bool) -> str:
        if found is None and self._id is not None:  # the known id belongs to another state
            raise WrongState(gone(self._expected.what, self._expected.name))
        return self._expected.settled(_text(found), is_empty=is_empty)


def _text(found: bytes | None) -> str | None:
    return None if found is None else found.decode(errors="replace")
