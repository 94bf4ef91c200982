"""The changes of stored responses in Redis. Each response is added or removed in one transaction.

Elsewhere: when a response is added or removed (`responses`, `records`).
"""

import msgspec

from gateway.state.records import StoredResponse
from gateway.state.redis import keys as at
from gateway.state.redis.identity import StateLink
from gateway.state.redis.transaction import Transaction


def end_of(tenant_id: str, response_id: str) -> bytes:
    """Return a response's member in RESPONSE_ENDS."""
    return msgspec.json.encode([tenant_id, response_id])


async def drop_one(link: StateLink, tenant_id: str, response_id: str) -> Transaction:
    """Make a transaction that removes a response, or the remains of an expired response."""
    place = at.responses_of(tenant_id)
    size = await link.command("HSTRLEN", place, response_id)
    transaction = Transaction()
    transaction.expect(["HSTRLEN", place, response_id], size)
    transaction.write("HDEL", place, response_id)
    transaction.write("ZREM", at.response_ages(tenant_id), response_id)
    transaction.write("ZREM", at.RESPONSE_ENDS, end_of(tenant_id, response_id))
    if size:
        _count(transaction, tenant_id, -size)
    return transaction


async def drop_all(link: StateLink, transaction: Transaction, tenant_id: str) -> None:
    """Let `transaction` remove all responses of a tenant, in few commands.

    The responses' members of RESPONSE_ENDS stay until the responses would have expired.
    """
    size = await link.command("ZSCORE", at.RESPONSE_BYTES, tenant_id)
    # no bytes are stored if the tenant never had any response
    held = b"" if size is None else int(size)
    transaction.expect(["ZSCORE", at.RESPONSE_BYTES, tenant_id], held)
    transaction.write("UNLINK", at.responses_of(tenant_id), at.response_ages(tenant_id))
    transaction.write("ZREM", at.RESPONSE_BYTES, tenant_id)
    transaction.write("DECRBY", at.RESPONSE_BYTES_OF_ALL, str(int(size or 0)))


def add_one(transaction: Transaction, response: StoredResponse, record: bytes) -> None:
    """Let `transaction` add the response with this record."""
    tenant_id, response_id = response.tenant_id, response.id
    ends_at, made_at = repr(response.expires_at), repr(response.created_at)
    transaction.write("HSET", at.responses_of(tenant_id), response_id, record)
    transaction.write("ZADD", at.response_ages(tenant_id), made_at, response_id)
    transaction.write("ZADD", at.RESPONSE_ENDS, ends_at, end_of(tenant_id, response_id))
    _count(transaction, tenant_id, len(record))


def _count(transaction: Transaction, tenant_id: str, size: int) -> None:
    transaction.write("ZINCRBY", at.RESPONSE_BYTES, str(size), tenant_id)
    transaction.write("INCRBY", at.RESPONSE_BYTES_OF_ALL, str(size))
