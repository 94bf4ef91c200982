"""A key without a mark, as issued before keys had marks. It looks like a made-up key."""

from __future__ import annotations

import secrets

from gateway.auth.keyring import KEY_BYTES, key_digest, key_of
from gateway.state.records import ApiKey
from gateway.state.store import Store


async def issue_unmarked(store: Store, pepper: bytes, tenant_id: str) -> str:
    """Store a key without a mark for the tenant; return the key."""
    key = key_of(secrets.token_bytes(KEY_BYTES))
    record = ApiKey(
        id=f"key_{secrets.token_hex(8)}",
        tenant_id=tenant_id,
        digest=key_digest(pepper, key),
        hint="",
        created_at=1.0,
    )
    await store.create(record)
    return key
