"""The storage of the limits: a SQLite file that this machine's workers share, or Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.limits.limiter import Limiter
from gateway.limits.sqlite import SqliteLimiter
from gateway.limits.unpaid import uncounted
from gateway.state.faults import Faulty
from gateway.state.identity import expected, remember
from gateway.state.reserved_room import ReservedRoom

if TYPE_CHECKING:
    from gateway.state.redis.link import RedisLink

LIMITS_FILE = "limits.sqlite"


@dataclass(frozen=True, slots=True)
class LimitsHome:
    """The limiter, and its SQLite file, if any, to watch for faults."""

    limiter: Limiter
    watched: Sequence[Faulty]


def open_limits(
    data_dir: Path,
    room: ReservedRoom,
    link: RedisLink | None,
    *,
    processes: int,
    on_lost: Callable[[], None] = uncounted,
) -> LimitsHome:
    """Open the limits in the Redis of `link`, which stays open, or in a file if `link` is None.

    `processes` is the number of processes that share the limits. `on_lost` is called for each
    charge that is lost. Raises WrongState, DatabaseFault or OSError.
    """
    if link is not None:
        # Imported late, since the Redis client takes 0.2 s to load, and most starts have no Redis.
        from gateway.limits.guarded import GuardedLimiter
        from gateway.limits.redis import RedisLimiter

        return LimitsHome(
            GuardedLimiter(RedisLimiter(link), replicas=processes, on_lost=on_lost), []
        )
    limiter = SqliteLimiter(
        data_dir / LIMITS_FILE,
        expected=expected(data_dir, "limits", LIMITS_FILE),
        room=room,
        on_lost=on_lost,
    )
    if limiter.file.id is not None:
        remember(data_dir, "limits", limiter.file.id)
    return LimitsHome(limiter, [limiter.file])
