"""The tenants' module schemas in Redis: a hash for each tenant."""

import msgspec

from gateway.state.records import ModuleSchema, Tenant
from gateway.state.redis import keys as at
from gateway.state.redis.large import UNSIZED
from gateway.state.redis.record_reader import read_record
from gateway.state.redis.responses import RedisResponses
from gateway.state.redis.transaction import Transaction
from gateway.state.store import MOST_SCHEMAS
from gateway.state.store_errors import missing, missing_schema, too_many_schemas


class RedisModules(RedisResponses):
    """The schemas of prompt modules (`gateway.state.store.SchemaStore`) in Redis."""

    async def keep_schema(self, schema: ModuleSchema) -> ModuleSchema:
        tenant_id, place = schema.tenant_id, at.schemas_of(schema.tenant_id)

        async def change() -> Transaction:
            if await self._schema(tenant_id, schema.id) is not None:
                return Transaction()
            tenant, transaction = await self._changing(Tenant, tenant_id)
            if tenant.disabled:
                raise missing(Tenant)
            count = await self.link.command("HLEN", place)
            if count >= MOST_SCHEMAS:
                raise too_many_schemas()
            transaction.expect(["HLEN", place], count)
            transaction.expect(["HEXISTS", place, schema.id], 0)
            transaction.write("HSET", place, schema.id, msgspec.json.encode(schema))
            return transaction

        async with self.link.turn_of(tenant_id):
            await self._repeat(change)
            return await self._schema(tenant_id, schema.id) or schema

    async def find_schema(self, tenant_id: str, schema_id: str) -> ModuleSchema:
        async with self.link.turn_of(tenant_id):
            found = await self._schema(tenant_id, schema_id)
        if found is None:
            raise missing_schema()
        return found

    async def schema_ids(self, tenant_id: str) -> list[str]:
        found = await self.link.command("HKEYS", at.schemas_of(tenant_id))
        return [one.decode() for one in found]

    async def drop_schema(self, tenant_id: str, schema_id: str) -> None:
        async def change() -> Transaction:
            place, transaction = at.schemas_of(tenant_id), Transaction()
            transaction.expect(["HEXISTS", place, schema_id], 1, missing_schema())
            transaction.write("HDEL", place, schema_id)
            return transaction

        await self._repeat(change)

    async def _schema(self, tenant_id: str, schema_id: str) -> ModuleSchema | None:
        place = at.schemas_of(tenant_id)
        found = await self.link.command("HGET", place, schema_id, size=UNSIZED)
        return None if found is None else read_record(found, ModuleSchema)
