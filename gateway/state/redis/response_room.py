"""The choice of responses that may be removed to make room for a new response (`make_room`)."""

from collections.abc import Sequence

from gateway.state.records import ResponseRoom
from gateway.state.redis import keys as at
from gateway.state.redis.identity import StateLink
from gateway.state.redis.response_changes import end_of


async def room_for(
    link: StateLink, tenant_id: str, size: int, room: ResponseRoom, most: int
) -> Sequence[str | bytes]:
    """Return MAKE_ROOM's arguments to add `size` bytes and remove at most `most` responses."""
    whose = await _who_makes_room(link, tenant_id, size, room)
    ids: list[bytes] = []
    if whose is not None:
        ids = await link.command("ZRANGE", at.response_ages(whose), 0, most - 1)
    words: list[str | bytes] = [tenant_id, str(size), str(room.of_tenant), str(room.of_all)]
    words.append(str(len(ids)))
    for one in ids:
        words += [whose or "", one, end_of(whose or "", one.decode())]
    return words


async def _who_makes_room(
    link: StateLink, tenant_id: str, size: int, room: ResponseRoom
) -> str | None:
    """Return the tenant whose oldest responses must be removed; None if there is room."""
    own, every, heaviest = await link.commands(
        [
            ("ZSCORE", at.RESPONSE_BYTES, tenant_id),
            ("GET", at.RESPONSE_BYTES_OF_ALL),
            ("ZREVRANGE", at.RESPONSE_BYTES, 0, 0, "WITHSCORES"),
        ]
    )
    of_own = int(float(own or 0))
    if of_own + size > room.of_tenant:
        return tenant_id
    if int(every or 0) + size <= room.of_all or not heaviest:
        return None
    name, most = heaviest
    return tenant_id if of_own and of_own + size >= float(most) else name.decode()
