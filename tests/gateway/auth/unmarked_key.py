"""A key as it was issued before keys had a mark: nobody can tell it from one that is made up."""

from __future__ import annotations

import secrets

from gateway.auth.keyring import KEY_BYTES, key_digest, key_of
from gateway.state.records import ApiKey
from gateway.state.store import Store


async def issue_unmarked(store: Store, pepper: bytes, tenant_id: str) -> str:
    """Store a key of the tenant and return it."""
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
