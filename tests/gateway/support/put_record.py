"""A record put in the place of the one with its id, as who has read it before would."""

from __future__ import annotations

from gateway.state.store import R, Records


async def put(store: Records, record: R) -> R:
    """Put a record in place of the stored one; return what is stored then."""
    return await store.update(type(record), record.id, lambda _: record)
