"""Opens the state: SQLite in the data directory, or Redis if a URL is configured.

Knows: how either is opened. Does not know: what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from gateway.config import Shared
from gateway.state.sqlite import SqliteStore
from gateway.state.store import Listener, Store

STATE_FILE = "state.sqlite"


class Telling(Protocol):
    """How others are told of what is changed elsewhere."""

    def __call__(self, *listeners: Listener) -> AbstractAsyncContextManager[None]:
        """Tell them for as long as this is open."""
        ...


@dataclass(frozen=True, slots=True)
class Home:
    """The store, and how listeners are told what other gateways change in it."""

    store: Store
    telling: Telling


@asynccontextmanager
async def open_home(data_dir: Path, shared: Shared) -> AsyncIterator[Home]:
    """Open the state; it is closed at the end. Redis need not be reachable yet.

    Raises SchemaTooNew, PrivateFileError, OSError, or ValueError for a malformed URL.
    """
    home = _on_disk(data_dir) if shared.redis_url is None else _in_redis(shared)
    try:
        yield home
    finally:
        await home.store.close()


def _on_disk(data_dir: Path) -> Home:
    return Home(SqliteStore(data_dir / STATE_FILE), _tell_nobody)


def _tell_nobody(*_: Listener) -> AbstractAsyncContextManager[None]:
    """There is no other gateway."""
    return nullcontext()


def _in_redis(shared: Shared) -> Home:
    # Imported here: the client takes 0.2 s to load, and most starts have no Redis.
    from gateway.state.redis_changes import told_of_changes
    from gateway.state.redis_link import RedisLink, open_client
    from gateway.state.redis_store import RedisStore

    link = RedisLink(open_client(shared), timeout_s=shared.redis_timeout_s)
    return Home(RedisStore(link), partial(told_of_changes, link.client))
