"""The stored responses in Redis: a hash for each tenant, and sums and orderings of responses.

Elsewhere: which of them are removed to make room (`response_room`).
"""

import re
from contextlib import suppress

import msgspec

from gateway.state.records import ResponseRoom, StoredResponse, Tenant
from gateway.state.redis import keys as at
from gateway.state.redis.link import unavailable
from gateway.state.redis.record_reader import read_record
from gateway.state.redis.records import RedisRecords
from gateway.state.redis.response_changes import add_one, drop_one, end_of
from gateway.state.redis.response_room import room_for
from gateway.state.redis.transaction import Changed, Transaction
from gateway.state.store_errors import missing, missing_response, taken

_EXPIRED_AT_ONCE = 256
_SCANNED_AT_ONCE = 512
_SPECIAL = re.compile(r"[\\*?\[\]]")  # characters with a meaning in Redis's patterns
# The maximum number of responses that each try removes for a new response. While Redis removes
# responses, it serves nobody.
_MAY_GO = (8, *[256] * 99)


class RedisResponses(RedisRecords):
    """The stored responses (`gateway.state.store.ResponseStore`) in Redis."""

    async def keep_response(self, response: StoredResponse, room: ResponseRoom) -> bool:
        record = msgspec.json.encode(response)
        if not room.has_room_for(len(record)):
            return False

        async def change() -> Transaction:
            tenant, transaction = await self._changing(Tenant, response.tenant_id)
            if tenant.disabled:
                raise missing(Tenant)
            place = at.responses_of(response.tenant_id)
            transaction.expect(["HEXISTS", place, response.id], 0, taken())
            add_one(transaction, response, record)
            return transaction

        async with self.link.turn_of(response.tenant_id):
            for most in _MAY_GO:
                found = await room_for(self.link, response.tenant_id, len(record), room, most=most)
                with suppress(Changed):
                    if await self.link.apply_with_room(await change(), found):
                        return True
        raise unavailable()

    async def find_response(
        self, tenant_id: str, response_id: str, *, now: float
    ) -> StoredResponse:
        place = at.responses_of(tenant_id)
        async with self.link.turn_of(tenant_id):
            size = await self._size_of(tenant_id, response_id, now)
            record = await self.link.command("HGET", place, response_id, size=size)
        if record is None:
            raise missing_response()
        return read_record(record, StoredResponse)

    async def replace_response(self, response: StoredResponse, *, now: float) -> None:
        tenant_id, record = response.tenant_id, msgspec.json.encode(response)

        async def change() -> Transaction:
            await self._size_of(tenant_id, response.id, now)
            transaction = await drop_one(self.link, tenant_id, response.id)
            add_one(transaction, response, record)
            return transaction

        await self._repeat(change)

    async def response_ids(self, tenant_id: str, beginning: str, *, now: float | None) -> list[str]:
        async with self.link.turn_of(tenant_id):
            ids = await self._named(tenant_id, beginning)
            if now is None:
                return ids
            ends = [("ZSCORE", at.RESPONSE_ENDS, end_of(tenant_id, one)) for one in ids]
            scores = await self.link.commands(ends)
        ending = zip(ids, scores, strict=True)
        return [one for one, ends_at in ending if ends_at is not None and float(ends_at) > now]

    async def drop_response(self, tenant_id: str, response_id: str, *, now: float) -> None:
        await self._size_of(tenant_id, response_id, now)
        await self._repeat(lambda: drop_one(self.link, tenant_id, response_id))

    async def count_responses(self, tenant_id: str) -> int:
        async with self.link.turn_of(tenant_id):
            return int(await self.link.command("HLEN", at.responses_of(tenant_id)))

    async def drop_expired_responses(self, *, now: float) -> None:
        bounds = "-inf", repr(now), "LIMIT", 0, _EXPIRED_AT_ONCE
        for member in await self.link.command("ZRANGEBYSCORE", at.RESPONSE_ENDS, *bounds):
            await self._drop(*read_record(member, tuple[str, str]))

    async def _named(self, tenant_id: str, beginning: str) -> list[str]:
        """Return the ids that begin with `beginning`, the oldest response first.

        Redis serves nobody while it runs a command, so each command looks at a few ids.
        """
        found: dict[bytes, float] = {}
        place, cursor = at.response_ages(tenant_id), 0
        pattern = _SPECIAL.sub(r"\\\g<0>", beginning) + "*"
        while True:
            words = place, cursor, "MATCH", pattern, "COUNT", _SCANNED_AT_ONCE
            cursor, some = await self.link.command("ZSCAN", *words)
            found.update(some)
            if not cursor:
                return [one.decode() for one in sorted(found, key=lambda one: (found[one], one))]

    async def _size_of(self, tenant_id: str, response_id: str, now: float) -> int:
        size, ends_at = await self.link.commands(
            [
                ("HSTRLEN", at.responses_of(tenant_id), response_id),
                ("ZSCORE", at.RESPONSE_ENDS, end_of(tenant_id, response_id)),
            ]
        )
        if not size or ends_at is None or float(ends_at) <= now:
            raise missing_response()
        return int(size)

    async def _drop(self, tenant_id: str, response_id: str) -> None:
        with suppress(Changed):  # another gateway has removed the response
            await self.link.apply(await drop_one(self.link, tenant_id, response_id))
