"""The storage of the state: SQLite in the data directory, or Redis if a URL is configured."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Shared
from gateway.state.faults import Faulty
from gateway.state.identity import ExpectedState, expected, remember
from gateway.state.reserved_room import ReservedRoom
from gateway.state.sqlite.store import SqliteStore
from gateway.state.store import Listener, Store

if TYPE_CHECKING:
    from gateway.state.redis.link import RedisLink

STATE_FILE = "state.sqlite"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """The store and its possible faults. `link` leads to the shared Redis; None with SQLite."""

    store: Store
    watched: Faulty
    link: RedisLink | None = None

    def telling(self, *listeners: Listener) -> AbstractAsyncContextManager[None]:
        """Notify listeners of other gateways' changes while this context is open."""
        if self.link is None:  # without Redis there is no other gateway
            return nullcontext()
        from gateway.state.redis.store import told_of_changes

        return told_of_changes(self.link.client, *listeners)


@asynccontextmanager
async def open_home(
    data_dir: Path, shared: Shared, room: ReservedRoom | None = None, *, new_state: bool = False
) -> AsyncIterator[Home]:
    """Open the state. Close it when this context ends.

    Redis need not be reachable yet. With `new_state`, the state may differ from the expected state.
    Otherwise an unexpected state raises WrongState. Also raises SchemaTooNew, PrivateFileError,
    DatabaseFault, OSError, or ValueError for a malformed URL.
    """
    if shared.redis_url is None:
        home = await _on_disk(data_dir, room, new_state)
    else:
        home = _in_redis(data_dir, shared, new_state)
    try:
        yield home
    finally:
        await home.store.close()


async def _on_disk(data_dir: Path, room: ReservedRoom | None, new_state: bool) -> Home:
    store = SqliteStore(data_dir / STATE_FILE, _wanted(data_dir, STATE_FILE, new_state), room)
    try:
        if store.file.id is not None:
            remember(data_dir, "state", store.file.id)
    except OSError:
        await store.close()
        raise
    return Home(store, store.file)


def _in_redis(data_dir: Path, shared: Shared, new_state: bool) -> Home:
    # Imported late, since the Redis client takes 0.2 s to load, and most starts have no Redis.
    from gateway.state.redis.identity import REDIS
    from gateway.state.redis.link import open_link
    from gateway.state.redis.store import RedisStore

    link = open_link(shared)
    wanted = _wanted(data_dir, REDIS, new_state)
    store = RedisStore(link, wanted, partial(_remember, data_dir))
    return Home(store, store.link, link)


def _wanted(data_dir: Path, name: str, new_state: bool) -> ExpectedState:
    return ExpectedState("state", name) if new_state else expected(data_dir, "state", name)


def _remember(data_dir: Path, found: str) -> None:
    try:
        remember(data_dir, "state", found)
    except OSError as error:
        _LOG.error("which state this is cannot be marked in the data directory: %s", error)
