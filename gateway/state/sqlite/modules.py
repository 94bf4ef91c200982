"""The tenants' module schemas in SQLite, in the table `module_schemas`."""

import sqlite3

import msgspec

from gateway.state.records import ModuleSchema
from gateway.state.sqlite.file import transaction
from gateway.state.sqlite.responses import SqliteResponses, check_tenant
from gateway.state.store import MOST_SCHEMAS
from gateway.state.store_errors import missing_schema, too_many_schemas

_WANTED = "WHERE tenant_id = ? AND id = ?"
_DECODER = msgspec.json.Decoder(ModuleSchema)


class SqliteModules(SqliteResponses):
    """The schemas of prompt modules (`gateway.state.store.SchemaStore`) in a SQLite file."""

    async def keep_schema(self, schema: ModuleSchema) -> ModuleSchema:
        return await self.in_turn(
            schema.tenant_id, self.run, lambda connection: _keep(connection, schema)
        )

    async def find_schema(self, tenant_id: str, schema_id: str) -> ModuleSchema:
        return await self.in_turn(
            tenant_id, self.read, lambda connection: _find(connection, tenant_id, schema_id)
        )

    async def schema_ids(self, tenant_id: str) -> list[str]:
        return await self.in_turn(
            tenant_id, self.read, lambda connection: _ids(connection, tenant_id)
        )

    async def drop_schema(self, tenant_id: str, schema_id: str) -> None:
        await self.in_turn(
            tenant_id, self.run, lambda connection: _drop(connection, tenant_id, schema_id)
        )


def _keep(connection: sqlite3.Connection, schema: ModuleSchema) -> ModuleSchema:
    tenant_id = schema.tenant_id
    with transaction(connection):
        check_tenant(connection, tenant_id)
        before = _row(connection, tenant_id, schema.id)
        if before is not None:
            return before
        counted = "SELECT count(*) FROM module_schemas WHERE tenant_id = ?"
        if connection.execute(counted, (tenant_id,)).fetchone()[0] >= MOST_SCHEMAS:
            raise too_many_schemas()
        connection.execute(
            "INSERT INTO module_schemas (tenant_id, id, created_at, record) VALUES (?, ?, ?, ?)",
            (tenant_id, schema.id, schema.created_at, msgspec.json.encode(schema)),
        )
    return schema


def _row(connection: sqlite3.Connection, tenant_id: str, schema_id: str) -> ModuleSchema | None:
    statement = f"SELECT record FROM module_schemas {_WANTED}"
    found = connection.execute(statement, (tenant_id, schema_id)).fetchone()
    return None if found is None else _DECODER.decode(found[0])


def _find(connection: sqlite3.Connection, tenant_id: str, schema_id: str) -> ModuleSchema:
    found = _row(connection, tenant_id, schema_id)
    if found is None:
        raise missing_schema()
    return found


def _ids(connection: sqlite3.Connection, tenant_id: str) -> list[str]:
    statement = "SELECT id FROM module_schemas WHERE tenant_id = ?"
    return [schema_id for (schema_id,) in connection.execute(statement, (tenant_id,))]


def _drop(connection: sqlite3.Connection, tenant_id: str, schema_id: str) -> None:
    statement = f"DELETE FROM module_schemas {_WANTED}"
    if not connection.execute(statement, (tenant_id, schema_id)).rowcount:
        raise missing_schema()
