"""The indexes in Redis: taken names, and the members of groups.

Knows: the checks and writes that keep an index consistent. Does not know: the records
(`redis_store`), nor how a transaction is applied (`redis_transaction`).
"""

from __future__ import annotations

from gateway.errors import Conflict, GatewayError, NotFound
from gateway.state import redis_keys as at
from gateway.state.redis_transaction import Transaction


def expect_free(transaction: Transaction, place: str, field: str | bytes) -> None:
    """Conflict where this name or id is taken."""
    transaction.expect(["HEXISTS", place, field], 0, Conflict("the name or id is taken"))


def rename(transaction: Transaction, names: str, record_id: str, old: str, new: str) -> None:
    """Let a record be found by another name; Conflict where that is taken."""
    if new != old:
        expect_free(transaction, names, new)
        transaction.write("HDEL", names, old)
        transaction.write("HSET", names, new, record_id)


def join(transaction: Transaction, member_id: str, old: str | None, new: str | None) -> None:
    """Let a member leave one group and enter another; NotFound when that is not there."""
    if new == old:
        return
    leave(transaction, member_id, old)
    if new is not None:
        transaction.expect(["HEXISTS", at.GROUPS, new], 1, missing(at.GROUPS))
        transaction.write("SADD", at.members_of(new), member_id)


def leave(transaction: Transaction, member_id: str, group_id: str | None) -> None:
    """Let a member be in no group."""
    if group_id is not None:
        transaction.write("SREM", at.members_of(group_id), member_id)


def missing(place: str) -> GatewayError:
    """What a record of this place is called when it is not there."""
    kinds = {at.TENANTS: "tenant", at.KEYS: "key", at.GROUPS: "group", at.PREFIXES: "prefix"}
    return NotFound(f"no such {kinds[place]}")
