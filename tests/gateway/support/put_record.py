"""A record put in the place of the one with its id, as who has read it before would."""

from __future__ import annotations

from gateway.state.store import R, Records


async def put(store: Records, record: R) -> R:
    """What is stored then; raises as `Records.update`."""
    return await store.update(type(record), record.id, lambda _: record)
