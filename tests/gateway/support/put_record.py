"""A record that replaces the stored one with its id, like an outdated copy."""

from __future__ import annotations

from gateway.state.store import R, Records


async def put(store: Records, record: R) -> R:
    """Put a record in place of the stored one; return what is stored then."""
    return await store.update(type(record), record.id, lambda _: record)
