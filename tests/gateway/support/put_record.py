"""A write that replaces the stored record with the same id, as from an outdated copy."""

from __future__ import annotations

from gateway.state.store import R, Records


async def put(store: Records, record: R) -> R:
    """Put a record in place of the stored one with its id; return the record that is then
    stored.
    """
    return await store.update(type(record), record.id, lambda _: record)
